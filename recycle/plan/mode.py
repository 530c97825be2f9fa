"""What a plan is allowed to do: the three choices that the ReCycle paper compares.

A routing rule says which live servers of a stage may execute a micro-batch. It is an entry of ``ROUTING_RULES``: plan
files, planners, the checker and the command line take it from here. Whatever the rule, a micro-batch may stay at home
where its home server is alive. For the rules that come along, which pipeline is which does not matter: one plan is read
for other dead servers by renaming its pipelines (``recycle.plan.normalise``). Rules of users may tell pipelines apart;
they are for single plans.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

Hosts: TypeAlias = Callable[[int, tuple[int, ...]], tuple[int, ...]]


class RoutingRule(msgspec.Struct, frozen=True):
    """Where micro-batches may be executed.

    Attributes:
        summary: the rule in a few words, for help.
        hosts: by the home of a micro-batch and the pipelines whose server of a stage is alive (rising, one at least),
            those of them whose server may execute it; rising, the home among them if it is alive.
        keeps_home: ``hosts`` is the home alone wherever it is alive. A relaxation of the exact solver needs that.
        any_live: ``hosts`` is all live pipelines, whatever the home: micro-batches of all homes are interchangeable,
            and so are the servers of a stage. The exact solver uses it.
        registered: a user's, for which it may matter which pipeline is which.
    """

    summary: str
    hosts: Hosts
    keeps_home: bool = False
    any_live: bool = False
    registered: bool = False


def _home_or_peers(home: int, live: tuple[int, ...]) -> tuple[int, ...]:
    return (home,) if home in live else live


ROUTING_RULES: dict[str, RoutingRule] = {
    "home": RoutingRule("healthy micro-batches stay on their pipeline", _home_or_peers, keeps_home=True),
    "free": RoutingRule("any may move", lambda home, live: live, any_live=True),
}
"""By name, the usual one first."""


def interchangeable(rule: RoutingRule, pipelines: int, micro_batches: int) -> list[range]:
    """The micro-batches ``home * micro_batches + m`` in groups in which they differ by their number only."""
    total = pipelines * micro_batches
    size = total if rule.any_live else micro_batches
    return [range(first, first + size) for first in range(0, total, size)]


class Mode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The freedoms of a plan.

    Attributes:
        backward: ``fused`` runs the input and the weight gradient as one instruction (B), so the gradient goes on to
            the previous stage only when both are done; ``split`` schedules I and W on their own.
        optimizer: ``global`` steps all stages behind one barrier; ``staggered`` steps each stage when its own
            gradients are ready, so that the next iteration of the first stages overlaps this one of the last.
        routing: ``home`` keeps a micro-batch on its own pipeline wherever that server is alive; ``free`` may give
            any micro-batch to any live server of the stage; or the name of a registered rule.
    """

    backward: Literal["fused", "split"] = "split"
    optimizer: Literal["global", "staggered"] = "staggered"
    routing: str = "home"

    def __post_init__(self) -> None:
        """Refuse a rule that is not known.

        Raises:
            ValueError: there is none of this name.
        """
        if self.routing not in ROUTING_RULES:
            raise ValueError(f"routing {self.routing!r}: there is none; choose from {', '.join(ROUTING_RULES)}")

    @property
    def routing_rule(self) -> RoutingRule:
        """Where micro-batches may be executed."""
        return ROUTING_RULES[self.routing]
