"""What the live servers tell each other once in some iterations, without waiting for each other.

A notice that is posted in the reduction of iteration i is read by all in the reduction of iteration i + 1; so all
act on it at the same boundary between iterations, without a barrier that a staggered optimizer would not have.

To post costs every server some messages, and nothing in a notice is urgent: so it is not done in every iteration,
unless they take so long that it costs next to nothing, and that neither a cluster nor a user may wait for several.
"""

import time
from typing import NamedTuple, Self

import torch

from recycle.runtime.net.network import Network, Reduction

EVERY = 4
"""Iterations from one post to the next, at most."""

LONG = 0.25
"""Seconds from one post to the next, at most, where an iteration takes less."""

_LONGEST = 100_000  # milliseconds; so that a sum over all servers can be counted
_SHORTEST = 1e-3


class Notices(NamedTuple):
    """How many servers say something.

    Attributes:
        admit: that somebody waits to be let in.
        unprotected: that the store cannot be used.
        unsaved: that a checkpoint which could not be written is to be tried again.
        leaving: that they were told to leave, by stage, or by chunk where pipelines are not alike. Empty for
            nobody.
    """

    admit: int = 0
    unprotected: int = 0
    unsaved: int = 0
    leaving: tuple[int, ...] = ()

    def encoded(self, units: int) -> torch.Tensor:
        """As it is summed over all servers of a job with so many stages, or chunks."""
        leaving = self.leaving or (0,) * units
        return torch.tensor([self.admit, self.unprotected, self.unsaved, *leaving], dtype=torch.int32)

    @classmethod
    def decoded(cls, tensor: torch.Tensor) -> Self:
        """The same again."""
        admit, unprotected, unsaved, *leaving = tensor.tolist()
        return cls(admit, unprotected, unsaved, tuple(leaving) if any(leaving) else ())


def interval(mean: float, long: float) -> int:
    """How many iterations there are from one post to the next.

    Args:
        mean: seconds of one.
        long: see ``NoticeExchange``.
    """
    return max(1, int(min(EVERY, long / max(mean, _SHORTEST))))


class NoticeExchange:
    """The notices of one view.

    Args:
        network: of the server.
        units: how many stages the job has, or chunks where pipelines are not alike.
        long: seconds from one post to the next, at most, where an iteration takes less.

    Attributes:
        say: what this server posts next.
        heard: what all said last.
        said: this server's part in that.
        before: what all said the time before.
    """

    def __init__(self, network: Network, units: int, long: float = LONG) -> None:
        self.say = Notices()
        self.heard = Notices()
        self.said = Notices()
        self.before = Notices()
        self._network = network
        self._units = units
        self._long = long
        self._every = EVERY
        self._to_go = 0
        self._iterations = 0  # since the last post
        self._began = time.monotonic()
        self._posted: tuple[Notices, torch.Tensor, Reduction] | None = None

    def exchange(self) -> None:
        """In the reduction of an iteration: read what was posted in the last one, and post if it is time to.

        Raises:
            ConnectionLost: somebody is gone.
        """
        self.collect()
        # When somebody leaves, others are often told to at the same time, and it is soon known who.
        if self._to_go <= 0 or self.heard.leaving:
            self._post()
        self._to_go -= 1
        self._iterations += 1

    def is_parting(self, all_leave: tuple[int, ...]) -> bool:
        """Whether those do so now that were heard to leave: it was heard twice, or nobody is left to be heard.

        Args:
            all_leave: what all servers together say if each leaves.
        """
        return bool(self.before.leaving) or self.heard.leaving == all_leave

    def _post(self) -> None:
        now = time.monotonic()
        took = min(round(1000 * (now - self._began) / max(self._iterations, 1)), _LONGEST)
        tensor = torch.cat([self.say.encoded(self._units), torch.tensor([took], dtype=torch.int32)])
        # What any rank of a server has to say, the server says; so all planes hear the same.
        self._network.ranks.maximum(tensor)
        said = Notices.decoded(tensor[:-1])
        self._posted = said, tensor, self._network.all.start_sum(tensor)
        self._to_go, self._iterations, self._began = self._every, 0, now

    def collect(self) -> None:
        """Read what was posted last; nothing is under way after it.

        Raises:
            ConnectionLost: somebody is gone.
        """
        if self._posted is None:
            return
        said, tensor, transfer = self._posted
        transfer.wait()
        self._posted = None
        self.before, self.heard, self.said = self.heard, Notices.decoded(tensor[:-1]), said
        # All have the same sum, and so the same interval.
        mean = int(tensor[-1]) / len(self._network.view.servers) / 1000
        self._every = interval(mean, self._long)
        self._to_go = min(self._to_go, self._every - 1)
