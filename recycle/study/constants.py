"""The constants of a study: what was measured by others, and here, and what is assumed; each can be set.

The figures of Oobleck, Varuna and Bamboo on 30 servers with a GPU each are inputs of the simulator in Oobleck's
artifact (SOSP'23, https://github.com/SymbioticLab/Oobleck, branch sosp23-artifact, folder tools/simulator, MIT), where
they were measured on 30 NVIDIA A40 with 200 Gbps InfiniBand.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from types import MappingProxyType

import msgspec

from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.placing.decision import BANDWIDTH, LAYER_BYTES
from recycle.wording import BYTES, known_unit


class Measured(msgspec.Struct, frozen=True):
    """Figures of one model.

    Attributes:
        model: its name in Oobleck's Table 2.
        batch: samples per iteration.
        oobleck_pause: seconds of a reconfiguration.
        varuna_restart: seconds from a failure to training again, with the time of a checkpoint in it.
        varuna_restarts: the same with 30 to 15 live servers, where it was measured for each; empty elsewhere.
        checkpoint: seconds of a checkpoint.
        bamboo_pause: seconds of a reconfiguration.
        oobleck: samples per second with 30 to 15 live servers.
        varuna: likewise.
        bamboo: likewise; empty where it ran out of memory.
    """

    model: str
    batch: int
    oobleck_pause: float
    varuna_restart: float
    varuna_restarts: tuple[float, ...]
    checkpoint: float
    bamboo_pause: float
    oobleck: tuple[float, ...]
    varuna: tuple[float, ...]
    bamboo: tuple[float, ...]


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of these figures.

    Attributes:
        source: where they are from.
        servers: numbers of live servers that throughput was measured for, falling.
        models: their figures, the smallest model first.
    """

    source: str
    servers: tuple[int, ...]
    models: tuple[Measured, ...]


ARTIFACT = msgspec.json.decode(
    (resources.files("recycle.study") / "data" / "oobleck-artifact.json").read_bytes(), type=Artifact
)
MEASURED = ARTIFACT.models

BAMBOO_RENDEZVOUS = 30.0
"""Seconds that Bamboo needs to meet again after a failure that it cannot survive, on top of its pause."""

RECYCLE_PAUSES = (0.1, 1.14, 2.8, 3.3, 7.8)
"""Seconds of this project's recovery, as measured in 2026: the medians for a process (12 processes on 2 CPU cores), a
rank over NCCL (4 ranks on one H100), a host (3 hosts of CPUs), a host with etcd; and a host with 5 s of planning."""

_ARTIFACT = "Oobleck's artifact (SOSP 2023; 30 NVIDIA A40, 200 Gbps InfiniBand)"
_GEMINI = "Gemini (SOSP 2023; 16 servers of 8 NVIDIA A100)"

SOURCES: Mapping[str, str] = {
    "recycle-pause": (
        "this project, 2026, seconds of a recovery: a process on CPUs 0.10, a rank over NCCL on one H100 1.14, a host "
        "of CPUs 2.8, with etcd 3.3, with 5 s of planning 7.8"
    ),
    "restart": f"a restart and the load of its checkpoint with Varuna, {_ARTIFACT}, five models",
    "checkpoint-cost": f"standing still for a checkpoint with Varuna, {_ARTIFACT}, five models",
    "checkpoint-interval": (
        "training between checkpoints on disk; if it is not given, Young's square root of 2 c / failure rate (1974) "
        "for restarts, and no other policy stands still for checkpoints"
    ),
    "disk-interval": "assumed: training between the checkpoints on disk of those that need one only if a stage is lost",
    "oobleck-pause": f"a reconfiguration, {_ARTIFACT}, five models; dropping takes it, for torchft publishes none",
    "bamboo-pause": f"a reconfiguration, {_ARTIFACT}, five models",
    "bamboo-rendezvous": f"what a restart of Bamboo takes longer, {_ARTIFACT}",
    "bamboo-share": f"what redundant computing leaves of throughput: BERT-large, {_ARTIFACT}",
    "gemini-restart": f"15 s to detect, 162 s to serialise, 243 s to warm up, {_GEMINI}",
    "detect": f"until a failure is known, where a warm spare server takes over, {_GEMINI}",
    "layer-size": "assumed: bytes of a layer with its moments that go to a server when layers move",
    "bandwidth": "assumed: bytes per second into a server that layers move to while training goes on",
}
"""What each constant is, with the year and the hardware that it was measured in."""

MOST: Mapping[str, float] = {"bamboo-share": 1.0, "layer-size": 1e15, "bandwidth": 1e15}
"""The greatest values of constants that are no times."""

MOST_SECONDS = 1e9
"""The greatest value of all others: thirty years."""


class Constants(msgspec.Struct, frozen=True, rename="kebab"):
    """What policies are modelled with; seconds where nothing else is said. ``SOURCES`` says where each is from.

    Attributes:
        recycle_pause: of this project's recovery.
        restart: from a failure to training again, by a restart from a checkpoint.
        checkpoint_cost: for which training stands still at a checkpoint.
        checkpoint_interval: of training between checkpoints; None for Young's with restarts, and free ones with others.
        disk_interval: of training between checkpoints of those that need one only if a stage is lost.
        oobleck_pause: of a reconfiguration.
        bamboo_pause: of a reconfiguration.
        bamboo_rendezvous: on top of it, where Bamboo restarts.
        bamboo_share: of the fault-free throughput.
        gemini_restart: from memory.
        detect: until a failure is known.
        layer_size: bytes.
        bandwidth: bytes per second.
    """

    recycle_pause: float
    restart: float
    checkpoint_cost: float
    oobleck_pause: float
    bamboo_pause: float
    checkpoint_interval: float | None = None
    disk_interval: float = 3600.0
    bamboo_rendezvous: float = BAMBOO_RENDEZVOUS
    bamboo_share: float = MEASURED[0].bamboo[0] / MEASURED[0].oobleck[0]
    gemini_restart: float = 420.0
    detect: float = 15.0
    layer_size: float = LAYER_BYTES
    bandwidth: float = BANDWIDTH

    def items(self) -> Mapping[str, float | None]:
        """All constants by the names that they are set by."""
        return {name: getattr(self, name.replace("-", "_")) for name in self.__struct_encode_fields__}


def constant_sets(given: Mapping[str, float] = MappingProxyType({})) -> tuple[Constants, ...]:
    """The constants as measured with each of five models, the typical ones last; those that are given are as given.

    Typical is the largest model: it is the most like those of large clusters, and its pauses are the longest.

    Args:
        given: values by name.

    Raises:
        UserError: there is no constant of a name, or a value is out of its range.
    """
    for name, value in given.items():
        if name not in SOURCES:
            raise UserError(f"constant {name!r}: there is none; choose from {', '.join(SOURCES)}")
        most = MOST.get(name, MOST_SECONDS)
        if not 0 < value <= most:
            what = "a number" if name in MOST else "seconds"
            raise UserError(f"constant {name} is {value:g}: give {what} above 0, and {most:g} at most")
    known = {name.replace("-", "_"): value for name, value in given.items()}
    sets = (
        msgspec.structs.replace(
            Constants(
                recycle_pause=pause,
                restart=each.varuna_restart,
                checkpoint_cost=each.checkpoint,
                oobleck_pause=each.oobleck_pause,
                bamboo_pause=each.bamboo_pause,
            ),
            **known,
        )
        for pause, each in zip(RECYCLE_PAUSES, MEASURED, strict=True)
    )
    return tuple(dict.fromkeys(sets))


def parse_constant(text: str) -> tuple[str, float]:
    """Read ``NAME=VALUE``: a time as 5m, an amount of memory as 600MB, a bandwidth as 25GBps or 200Gbps, or a share.

    Raises:
        UserError: it is none.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or name not in SOURCES:
        raise UserError(f"constant {text!r}: give NAME=VALUE, of {', '.join(SOURCES)}")
    if name not in ("bamboo-share", "layer-size", "bandwidth"):
        return name, parse_duration(value)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", value)
    unit, parts = match[2] if match else "", 1
    if name == "bandwidth":
        unit = unit.removesuffix("ps")
        if unit.endswith("b"):
            unit, parts = f"{unit[:-1]}B", 8  # a small b is a bit
    with suppress(ValueError):
        unit = known_unit(unit, BYTES)
    if match is None or (unit and (name == "bamboo-share" or unit not in BYTES)):
        raise UserError(f"constant {name}: {value!r} is no amount; write for example 0.32, 600MB, 200Gbps")
    return name, float(match[1]) * BYTES.get(unit, 1) / parts


TYPICAL = constant_sets()[-1]
"""What policies take if not told otherwise."""
