"""Which policies there are, by name."""

import re
from collections.abc import Callable

from recycle.errors import UserError
from recycle.study.constants import TYPICAL, Constants
from recycle.study.policies.baselines import Bamboo, Dropping, Oobleck
from recycle.study.policies.rerouting import Rerouting, WithMemory, WithPlacements
from recycle.study.policies.restarts import Checkpoints, Gemini, Spares
from recycle.study.policy import Policy
from recycle.study.rates import Ground, Rates

Maker = Callable[[Ground, Rates, Constants], Policy]

MAKERS: dict[str, Maker] = {
    Rerouting.name: Rerouting,
    WithPlacements.name: WithPlacements,
    WithMemory.name: WithMemory,
    Oobleck.name: Oobleck,
    Bamboo.name: Bamboo,
    Checkpoints.name: Checkpoints,
    Gemini.name: Gemini,
    Dropping.name: Dropping,
}
NAMES = (*MAKERS, "spares:K", "spares:K:warm")
ALL = (*MAKERS, "spares:4", "spares:4:warm")
"""What is compared if nothing is chosen."""

_SPARES = re.compile(r"spares:([0-9]{1,4})(:warm)?")


def make_policy(name: str, ground: Ground, rates: Rates, constants: Constants = TYPICAL) -> Policy:
    """A fresh policy.

    Raises:
        UserError: there is none of that name.
    """
    if spares := _SPARES.fullmatch(name):
        return Spares(ground, rates, constants, int(spares[1]), spares[2] is not None)
    if name in MAKERS:
        return MAKERS[name](ground, rates, constants)
    raise UserError(f"policy {name!r}: there is none; choose from {', '.join(NAMES)}")


def parse_policies(text: str) -> tuple[str, ...]:
    """Names between commas, each once.

    Raises:
        UserError: one of them is of no policy.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"policy {text!r}: give one at least, of {', '.join(NAMES)}")
    for name in names:
        if name not in MAKERS and not _SPARES.fullmatch(name):
            raise UserError(f"policy {name!r}: there is none; choose from {', '.join(NAMES)}")
    return tuple(dict.fromkeys(names))
