"""What recovery knows of a server's training, as small protocols: not every training can do everything."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from recycle.control.membership.view import SOLE, ServerRank
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.network import Network, TransportKind
from recycle.runtime.step.listener import Listener


class Versioned(Protocol):
    """A stage's state, in versions: version i is what i optimizer steps have made of it."""

    @property
    def newest(self) -> int:
        """The present version."""

    @property
    def oldest(self) -> int:
        """The oldest version that it can go back to."""

    def drop(self) -> None:
        """Forget the iteration that was not finished: gradients, graphs, transfers."""

    def undo(self) -> None:
        """Go back to the version before the newest."""

    def enter(self, network: Network, step: int) -> int:
        """Enter a view: find out with all others whether the last step was right, and make it so.

        Args:
            network: of the view.
            step: the version that a server has or will get from a peer.

        Returns:
            The version that it is: one less if that step has to be made again, and so has the iteration before it.

        Raises:
            ViewBroken: somebody is gone.
        """

    def state(self) -> Mapping[str, torch.Tensor]:
        """The newest version, by name."""

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Take a version from a peer of the stage."""


class Followable(Versioned, Protocol):
    """Versions that a joiner can follow while the others train: what serves the joiner has them, and so has it."""

    def listen(self, listener: Listener | None) -> None:
        """Tell somebody of every step from now on; None for nobody."""

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """Make the step that a peer of the stage made from these; the result is the same to the bit."""


class Sharded(Protocol):
    """The optimizer of a stage in shards, of which each peer holds some; the rest of a version is with all peers."""

    @property
    def count(self) -> int:
        """How many shards there are."""

    @property
    def held(self) -> Collection[int]:
        """Those of the newest version that are here."""

    @property
    def before(self) -> Collection[int]:
        """Those of the oldest version that are here, where that is another one."""

    def give(self, shard: int) -> Mapping[str, torch.Tensor]:
        """A shard of the newest version, by name."""

    def take(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """Take a shard of the newest version from a peer of the stage."""


class KeptShards(Sharded, Protocol):
    """Shards of which keepers can hold copies."""

    @property
    def layers(self) -> Sequence[int]:
        """Of how many parameters of a version, one after another, each layer consists."""

    def pieces(self, shard: int) -> Mapping[str, torch.Tensor]:
        """A shard of the newest version in pieces where they lie, by name; without a content where it is not here."""

    def take_pieces(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """Take what ``pieces`` gives of a shard of the newest version."""


class Movable(Protocol):
    """The chunks of a server, of which others can get copies, and which may be others in the next view."""

    @property
    def held(self) -> tuple[int, ...]:
        """Those of which the newest version is here, rising: what the last view had not, if it was never trained in."""

    def part(self, chunk: int) -> Mapping[str, torch.Tensor]:
        """The newest version of one of them, by name."""

    @property
    def newest(self) -> int:
        """The present version."""

    def listen(self, listeners: Sequence[tuple[int, Listener]]) -> None:
        """Tell some of every step of a chunk each from now on."""

    def start_copy(self, chunk: int) -> Followable:
        """Room for a copy of a chunk of others, that follows apart from the training."""

    def take_copy(self, chunk: int) -> None:
        """The copy that was started last is at the newest version, so that the chunk is held."""

    def hold(self, chunks: Sequence[int]) -> None:
        """Train these from the next view on; what is new has no version until the versions have adopted one."""


class Durable(Protocol):
    """Checkpoints, where training makes its own."""

    def load(self, step: int) -> None:
        """Take the version of a checkpoint.

        Raises:
            ConnectionLost: it is damaged, and not there any more.
        """

    def durable(self) -> int | None:
        """The newest step of which there is a checkpoint."""


class Kept(Protocol):
    """Copies of versions in the memory of keepers, which outlive the servers of a stage."""

    def halt(self) -> None:
        """Copy nothing more of the present version: it is about to change."""

    def find_versions(self) -> tuple[tuple[int, ...], ...]:
        """The versions that can be had of each stage."""

    def fetch(self, step: int) -> Mapping[str, torch.Tensor]:
        """A version of this server's stage, by name, with all shards of its optimizer.

        Raises:
            ViewBroken: no copy of a part of it is as it was.
        """

    def take_shards(self, version: Mapping[str, torch.Tensor], shards: Iterable[int]) -> None:
        """Have the optimizer take shards of a version that was fetched."""


class Connectable(Protocol):
    """What works by the plan of a view, over its groups.

    Attributes:
        recorder: what was executed.
    """

    recorder: Recorder

    @property
    def done(self) -> bool:
        """Whether training has come to its end, so that nobody needs this server's next iteration."""

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """Work by a plan over a network from now on."""


class Loop(Protocol):
    """A training that recovery itself takes from iteration to iteration."""

    @property
    def last(self) -> int:
        """The step at which training ends."""

    @property
    def owes_checkpoint(self) -> bool:
        """Whether the last checkpoint that was due could not be written."""

    @property
    def saves_again(self) -> bool:
        """Whether this server has it tried again."""

    def between(self, step: int, *, save: bool, settle: bool) -> None:
        """What is due before an iteration: a checkpoint, a look at held-out data. All servers come here.

        Args:
            step: the iteration.
            save: make a checkpoint though none is due.
            settle: make sure that the last step is right; all servers ask for it, or none.

        Raises:
            ViewBroken: somebody is gone.
        """

    def iterate(self, step: int) -> None:
        """Make an iteration, and tell of it.

        Raises:
            ViewBroken: somebody is gone.
        """


class Trainee(NamedTuple):
    """One server's training, as something that can be taken from view to view.

    Attributes:
        versions: of its state.
        connection: what works in a view.
        durable: its checkpoints; None where they are somebody else's.
        followed: its versions again; None where who joins gets its state in the pause in which it is let in.
        admits: whether its state is, just now, all that somebody needs who is let in.
        kept: copies in memory; None where there are none.
        shards: of its optimizer; None where each server holds all of its stage.
        chunks: of the server, where servers that hold one may hold different others; None where all peers of a server
            hold the same.
        rank: which of its server's ranks this is the training of.
        transport: what carries its tensors.
        iteration: gives the number by which people know the iteration that leads on from a version.
    """

    versions: Versioned
    connection: Connectable
    durable: Durable | None = None
    followed: Followable | None = None
    kept: Kept | None = None
    shards: Sharded | None = None
    chunks: Movable | None = None
    rank: ServerRank = SOLE
    admits: Callable[[], bool] = lambda: True
    transport: TransportKind = "gloo"
    iteration: Callable[[int], int] = int
