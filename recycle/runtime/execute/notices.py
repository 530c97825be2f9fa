"""What the live servers tell each other once in some iterations, without waiting for each other.

A notice that is posted in the reduction of iteration i is read by all in the reduction of iteration i + 1; so all
act on it at the same boundary between iterations, without a barrier that a staggered optimizer would not have.

To post costs every server some messages, and nothing in a notice is urgent: so it is not done in every iteration.
"""

from typing import NamedTuple, Self

import torch

from recycle.runtime.net.network import Network, Reduction

EVERY = 4
"""Iterations from one post to the next."""


class Notices(NamedTuple):
    """How many servers say something.

    Attributes:
        admit: that somebody waits to be let in.
        unprotected: that the store cannot be reached.
        leaving: that they were told to leave, by stage; empty for nobody.
    """

    admit: int = 0
    unprotected: int = 0
    leaving: tuple[int, ...] = ()

    def encoded(self, depth: int) -> torch.Tensor:
        """As it is summed over all servers of a job with so many stages."""
        leaving = self.leaving or (0,) * depth
        return torch.tensor([self.admit, self.unprotected, *leaving], dtype=torch.int32)

    @classmethod
    def decoded(cls, tensor: torch.Tensor) -> Self:
        """The same again."""
        admit, unprotected, *leaving = tensor.tolist()
        return cls(admit, unprotected, tuple(leaving) if any(leaving) else ())


class NoticeExchange:
    """The notices of one view.

    Args:
        network: of the server.

    Attributes:
        say: what this server posts next.
        heard: what all said last.
        said: this server's part in that.
        before: what all said the time before.
    """

    def __init__(self, network: Network) -> None:
        self.say = Notices()
        self.heard = Notices()
        self.said = Notices()
        self.before = Notices()
        self._network = network
        self._iterations = 0
        self._posted: tuple[Notices, torch.Tensor, Reduction] | None = None

    def exchange(self) -> None:
        """In the reduction of an iteration: read what was posted in the last one, and post if it is time to.

        Raises:
            ConnectionLost: somebody is gone.
        """
        self.collect()
        # When somebody leaves, others are often told to at the same time, and it is soon known who.
        if self._iterations % EVERY == 0 or self.heard.leaving:
            tensor = self.say.encoded(1 + max(each.stage for each in self._network.view.servers))
            self._posted = self.say, tensor, self._network.all.start_sum(tensor)
        self._iterations += 1

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
        self.before, self.heard, self.said = self.heard, Notices.decoded(tensor), said
