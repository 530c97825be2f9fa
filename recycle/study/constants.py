"""What was measured by others: throughput and pauses of Oobleck, Varuna and Bamboo on 30 servers with a GPU each.

All figures are inputs of the simulator in Oobleck's artifact (SOSP'23, https://github.com/SymbioticLab/Oobleck, branch
sosp23-artifact, folder tools/simulator, MIT), where they were measured on 30 NVIDIA A40 with 200 Gbps InfiniBand.
"""

from importlib import resources

import msgspec


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

    @property
    def iteration(self) -> float:
        """Seconds of Oobleck's iteration on all servers."""
        return self.batch / self.oobleck[0]


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

TYPICAL = MEASURED[-1]
"""What policies take if not told otherwise: the largest model, the most like those of large clusters."""

VARUNA_ITERATIONS = 10
"""Iterations between Varuna's checkpoints."""

BAMBOO_RENDEZVOUS = 30.0
"""Seconds that Bamboo needs to meet again after a failure that it cannot survive, on top of its pause."""

BAMBOO_SHARE = MEASURED[0].bamboo[0] / MEASURED[0].oobleck[0]
"""What Bamboo's redundant computing leaves of throughput, on the one of both models that favours it."""

GEMINI_DETECT, GEMINI_SERIALISE, GEMINI_WARM_UP = 15.0, 162.0, 243.0
"""Seconds of a restart from memory without a replacement: Gemini (SOSP'23), section 7."""
