"""What a member holds of its stage's state between two views, as it tells the others."""

from collections.abc import Collection, Sequence

from recycle.control.membership.messages import NOTHING, Report
from recycle.control.membership.view import Member
from recycle.runtime.net.network import Network
from recycle.runtime.recover.restore import Restoration, restore_state, share_out
from recycle.runtime.step.trainee import Trainee


class Holdings:
    """The versions that a member can bring into the next view.

    Args:
        member: who this is; in any life but its first, it holds nothing yet.
        trainee: its training.

    Attributes:
        empty: whether it holds no version, so that its training's own counts for nothing.
    """

    def __init__(self, member: Member, trainee: Trainee) -> None:
        self.empty = member.incarnation > 0
        self._member = member
        self._trainee = trainee

    def report(self, epoch: int, stop: str) -> Report:
        """What all others are told of it.

        Args:
            epoch: in which this member has halted.
            stop: why the run cannot go on; empty if it can.
        """
        trainee = self._trainee
        versions, shards, chunks = trainee.versions, trainee.shards, trainee.chunks
        newest, oldest = (NOTHING, NOTHING) if self.empty else (versions.newest, versions.oldest)
        held = None if shards is None else _unless_all(shards.held, shards.count)
        return Report(
            str(self._member),
            epoch,
            newest,
            oldest,
            self.checkpoint,
            stop,
            kept=() if trainee.kept is None else trainee.kept.find_versions(),
            rank=trainee.rank.number,
            closed=not (self.empty or trainee.admits()),
            shards=held,
            older_shards=held if shards is None or oldest == newest else _unless_all(shards.before, shards.count),
            chunks=None if chunks is None else () if self.empty else chunks.held,
        )

    @property
    def checkpoint(self) -> int | None:
        """The newest step of which there is a checkpoint, where training makes its own."""
        return None if self._trainee.durable is None else self._trainee.durable.durable()

    @property
    def remedy(self) -> str:
        """What to do when the run ends here."""
        if self._trainee.durable is None:
            return "go on from the last checkpoint, if there is one"
        step = self.checkpoint
        return "there is no checkpoint" if step is None else f"go on from step {step} with --resume"

    @property
    def last_death(self) -> str:
        """What the death of the last live server of a stage leads to; empty where memory has copies of its state."""
        if self._trainee.kept is not None:
            return ""
        return "the run ends" if self.checkpoint is None else "all go back to the last checkpoint"

    @property
    def done(self) -> bool:
        """Whether training has come to its end here."""
        return self._trainee.connection.done

    def drop(self) -> None:
        """Forget the iteration that was not finished."""
        if self._trainee.kept is not None:
            self._trainee.kept.halt()
        self._trainee.versions.drop()

    def restore(self, network: Network, restoration: Restoration) -> None:
        """Come to hold the version that a view begins with.

        Raises:
            ViewBroken: somebody is gone.
        """
        restore_state(self._trainee, self._member, network, restoration)
        if self._trainee.shards is not None:
            share_out(self._trainee.shards, network, self._bring)
        self.empty = False

    def _bring(self, shards: Sequence[int]) -> None:
        """Take shards of the newest version from keepers."""
        kept = self._trainee.kept
        assert kept is not None, "shards that no peer holds are with keepers, or nobody begins with them"
        kept.take_shards(kept.fetch(self._trainee.versions.newest), shards)


def _unless_all(shards: Collection[int], count: int) -> tuple[int, ...] | None:
    return None if len(shards) == count else tuple(sorted(shards))
