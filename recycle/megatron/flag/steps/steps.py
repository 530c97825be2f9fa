"""What an execution asks of the optimizer's steps, whoever makes them."""

from collections.abc import Sequence
from typing import Protocol

from recycle.megatron.flag.state.rejoin_state import TakenOver
from recycle.plan.plan import Plan
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import KeptShards, Versioned


class Steps(Protocol):
    """How the optimizer's steps are made, and made again."""

    @property
    def versions(self) -> Versioned:
        """What recovery chooses the version from with which a view begins."""

    @property
    def undone(self) -> int:
        """How often this server went back to an older version."""

    @property
    def whole(self) -> TakenOver:
        """Model and optimizer, for a rank that comes back."""

    @property
    def shards(self) -> KeptShards | None:
        """Those of a distributed optimizer that are here; None where each server holds all of its stage."""

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """Work by a plan over a network from now on."""

    def train(self) -> None:
        """Get to the version after the iteration that was asked for, whatever fails meanwhile."""

    def evaluate(self) -> None:
        """Execute the forward part of the plan on held-out data.

        Raises:
            ViewBroken: somebody is gone.
        """

    def settle(self) -> None:
        """Make sure that the present version is what it will stay; all servers come here."""

    def complete(self) -> None:
        """Have all parameters of the present version here.

        Raises:
            ViewBroken: somebody is gone.
        """

    def entered(self) -> None:
        """A view was entered: all its servers have the present version, and it is right."""

    def arrive(self, version: int) -> None:
        """This server has come back, and holds this version."""

    def catch_up(self) -> None:
        """In a new view, get as far as the training code believes that this server is."""
