"""The failures that a study replays: a recorded trace, or random ones like those of runs."""

import math
from collections.abc import Mapping

import msgspec

from recycle.faults.errors import FaultError
from recycle.faults.outages import Outages
from recycle.faults.random_faults import random_outages

YEAR = 365.25 * 86_400.0
SPARE_SEEDS = 1_000_000


class FailureHistory(msgspec.Struct, frozen=True):
    """Failures and repairs.

    Attributes:
        name: where they are from.
        seconds: how long it lasts.
        outages: of a recorded trace, as it was read; None for random ones.
        between_failures: of random ones, mean seconds between two failures of one server.
        repair: of random ones, mean seconds from a server's failure to its return.
    """

    name: str
    seconds: float
    outages: Outages | None = None
    between_failures: float = 0.0
    repair: float = 0.0

    @classmethod
    def recorded(cls, outages: Outages) -> "FailureHistory":
        """That of a trace."""
        return cls(outages.name, outages.seconds, outages)

    @classmethod
    def random(cls, between_failures: float, servers: int, repair: float) -> "FailureHistory":
        """A year of random failures.

        Args:
            between_failures: mean seconds between two failures of so many servers.
            servers: how many.
            repair: mean seconds from a server's failure to its return.

        Raises:
            FaultError: there is no time between failures, or until a return.
        """
        for name, seconds in (("between two failures of the job", between_failures), ("to repair", repair)):
            if not 0 < seconds < math.inf:
                raise FaultError(f"mean time {name} is {seconds:g} s: give a number of seconds above 0")
        return cls("random failures", YEAR, None, between_failures * servers, repair)

    @property
    def uncounted(self) -> Mapping[str, int]:
        """Failures of a trace that cost nothing that is known, and count as none, by what they are."""
        if self.outages is None:
            return {}
        return {"at the very end": self.outages.at_end, "without a length": self.outages.without_length}

    def failures_per_second(self, servers: int) -> float:
        """Of a job of so many servers."""
        if self.outages is None:
            return servers / self.between_failures
        return self.outages.failures_per_second * servers / self.outages.nodes

    def sample(self, servers: int, spares: int, seed: int) -> Outages:
        """The failures of a job's servers, and of spare ones behind them that fail as often.

        Args:
            servers: of the job.
            spares: beyond them.
            seed: of random failures, and of which places of a trace are the job's servers.
        """
        if self.outages is not None:
            return self.outages.resampled(servers + spares, seed)
        # Spares fail by a seed of their own, so that the job's servers fail alike whatever their number.
        of_job, of_spares = (
            random_outages(number, self.between_failures / number, self.repair, self.seconds, each) if number else None
            for number, each in ((servers, seed), (spares, SPARE_SEEDS + seed))
        )
        assert of_job is not None
        if of_spares is None:
            return of_job
        behind = (each._replace(node=servers + each.node) for each in of_spares.entries)
        entries = sorted((*of_job.entries, *behind), key=lambda each: (each.start, each.node))
        return msgspec.structs.replace(of_job, nodes=servers + spares, entries=tuple(entries))
