"""What is wrong with a plan."""

from collections.abc import Callable, Iterator

import msgspec

from recycle.job import Server
from recycle.plan.plan import Plan


class Violation(msgspec.Struct, frozen=True):
    """One thing that is wrong with a plan.

    Attributes:
        rule: the rule that is broken.
        message: what is wrong and what was expected.
        server: whose program it is in; None if it concerns the plan as a whole.
        index: the place of the instruction in that program, from 0; None if an instruction is missing.
    """

    rule: str
    message: str
    server: Server | None = None
    index: int | None = None


Rule = Callable[[Plan], Iterator[Violation]]
