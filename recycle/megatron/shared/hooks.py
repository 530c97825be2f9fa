"""The functions of Megatron's that are replaced or relied on, and with which parameters: one table for all releases."""

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

TABLE = "megatron_functions.txt"


class Hook(NamedTuple):
    """A function of Megatron's.

    Attributes:
        module: where it is.
        name: what it is called there.
        parameters: the names of its parameters; those behind a * can only be given by name.
    """

    module: str
    name: str
    parameters: str


class MegatronRelease(NamedTuple):
    """A release of Megatron.

    Attributes:
        hooks: what is replaced or relied on in it.
        python: the oldest one that has all names which its training code imports.
    """

    hooks: tuple[Hook, ...]
    python: tuple[int, int] = (3, 11)


def _hooks(release: str) -> tuple[Hook, ...]:
    """Those of a release, such as 0.19."""
    found = []
    for row in (files(__package__) / TABLE).read_text().splitlines():
        if not row.startswith("#"):
            releases, module, name, parameters = f"{row} ".split(" ", 3)
            since, until = releases.split("-")
            if since <= release <= until:
                found.append(Hook(module, name, parameters.rstrip()))
    return tuple(found)


PYTHON = (3, 12)
_OF_0_16, _OF_0_17, _OF_0_18, _OF_0_19 = map(_hooks, ("0.16", "0.17", "0.18", "0.19"))

RELEASES: Mapping[str, MegatronRelease] = {
    "0.16.1": MegatronRelease(_OF_0_16),
    "0.17.1": MegatronRelease(_OF_0_17),
    "0.18.0": MegatronRelease(_OF_0_18, PYTHON),
    "0.18.2": MegatronRelease(_OF_0_18, PYTHON),
    "0.19.0": MegatronRelease(_OF_0_19, PYTHON),
    # What the source tree of tag core_v0.19.0 calls itself.
    "0.19.1": MegatronRelease(_OF_0_19, PYTHON),
    "0.19.2": MegatronRelease(_OF_0_19, PYTHON),
}
