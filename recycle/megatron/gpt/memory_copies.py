"""Copies of a GPT's versions in the memory of keepers: how much they take, and who makes them."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from recycle.control.board.joinfile import last_token
from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.gpt.checkpointing import shard
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.server import GptServer
from recycle.record.reporting import Reporter
from recycle.runtime.keep.checkpoint_from_memory import CheckpointsFromMemory, Target, WritingKeeper
from recycle.runtime.keep.keeper_copies import KeeperCopies
from recycle.runtime.launch.meet.keepers import KeeperFinder, KeeperSetting, KeeperSlot, client_of, dismiss
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.net.endpoint import Endpoint
from recycle.state.directory import KeeperDirectory
from recycle.state.ladder import MOST
from recycle.state.redundancy import piece_size

VALUE, COUNTERS = 4, 12
"""Bytes of a parameter or moment, which are kept in full precision, and of what is counted for each tensor."""

SLACK = 1 << 16
"""Bytes for what belongs to no parameter."""


def version_bytes(options: ModelOptions, depth: int, stages: Collection[int], ranks: int = 1) -> int:
    """The most bytes that a version of some stages has: parameters, and what the optimizer knows of them.

    Args:
        options: the model.
        depth: in how many stages.
        stages: which of them.
        ranks: of each server; all of them together have so many, each of them as much as any other.
    """
    width, layers = options.hidden, options.layers // depth * len(stages)
    # What follows is split over the ranks of a server, and then what all of them have.
    values = layers * (12 * width * width + 7 * width) + ranks * layers * 6 * width
    # Tied, the last stage has a copy of what the first one has.
    own_head = depth > 1 or not options.tied
    values += (ranks * options.sequence + options.vocabulary) * width * (0 in stages)
    values += (ranks * 2 * width + own_head * options.vocabulary * width) * (depth - 1 in stages)
    moments = {"adamw": 2, "sgd": 1 if options.momentum else 0}[options.optimizer]
    return values * VALUE * (1 + moments) + ranks * ((12 * layers + 5) * COUNTERS + SLACK * len(stages))


def keeper_setting(run: Run, slot: KeeperSlot) -> KeeperSetting:
    """How a run keeps its state.

    Args:
        run: what is trained.
        slot: this process's part in its host's keeper.
    """
    assert run.redundancy is not None, "somebody has asked for it"
    return KeeperSetting(
        run.redundancy,
        lambda stages: keeper_bytes(run, stages),
        slot,
        lambda directory: describe_copies(run, directory),
        writing_bytes(run),
        run.checkpoints,
    )


def keeper_bytes(run: Run, stages: Collection[int]) -> int:
    """The most bytes that a keeper holds.

    Args:
        run: what is trained.
        stages: whose parts come to it.
    """
    assert run.redundancy is not None, "somebody has asked for it"
    job = run.plan.job
    pieces = piece_size(version_bytes(run.model, job.depth, stages, run.ranks), run.redundancy.needed)
    # Each part is cut up for itself, and its pieces are a byte longer where that does not go evenly.
    uneven = 0 if run.redundancy.needed == 1 else job.pipelines * run.ranks * len(stages)
    return (MOST + run.saves_from_memory) * (pieces + uneven)


def writing_bytes(run: Run) -> int:
    """The most bytes that a keeper takes beside that while it writes a stage to disk, or one rank's part of it."""
    assert run.redundancy is not None, "somebody has asked for it"
    if not run.saves_from_memory:
        return 0
    depth = run.plan.job.depth
    most = max(version_bytes(run.model, depth, [stage], run.ranks) for stage in range(depth)) // run.ranks
    parity = run.redundancy.spare if run.redundancy.needed > 1 else 0
    return most + parity * piece_size(most, run.redundancy.needed)


def take_slot(run: Run, meeting: Rendezvous | None, begin: Callable[[bool], None]) -> KeeperSetting | None:
    """In the first process of a run: how it keeps its state, and where; None where it does not.

    Args:
        run: what is trained.
        meeting: with the other processes; None where all are started here.
        begin: see KeeperSetting.
    """
    if run.redundancy is None:
        # What is left of an earlier start has no use any more.
        if left := last_token(run.folder):
            dismiss(left)
        return None
    slot = KeeperSlot(last_token(run.folder), None if meeting is None else meeting.address, resumes=run.goes_on)
    if meeting is not None:
        meeting.keeper = slot.offer
    return keeper_setting(run, slot)._replace(begin=begin)


def describe_copies(run: Run, directory: KeeperDirectory) -> str:
    """What copies in memory cost and survive, in a line.

    Args:
        run: what is trained.
        directory: of its keepers.
    """
    depth = run.plan.job.depth
    most = max(keeper_bytes(run, each) for each in directory.stages()) + writing_bytes(run)
    return directory.describe(version_bytes(run.model, depth, range(depth), run.ranks), most)


def make_keeper_copies(
    run: Run, trained: GptServer, server: Server, rank: ServerRank, endpoint: Endpoint, reporter: Reporter
) -> KeeperCopies | None:
    """What puts a rank's parts of its versions with keepers, and gets versions from there.

    Args:
        run: what is trained.
        trained: the server's training.
        server: which.
        rank: of the server.
        endpoint: of the run's store, where it says who keeps what; none does where nothing is kept.
        reporter: is told what the user should know.

    Raises:
        StoreLost: there is no store.
    """
    directory = None if run.redundancy is None else KeeperDirectory.read(endpoint.connect(), endpoint.token)
    if directory is None:
        return None

    finder = KeeperFinder(directory, endpoint, server, reporter, run.checkpoint_every if run.saves_from_memory else 0)
    if run.saves_from_memory:
        checkpoints, stages = trained.checkpoints, run.plan.job.depth
        target = Target(
            run.checkpoints,
            stages,
            directory.redundancy.pieces,
            run.keep,
            shard,
            checkpoints.manifest,
            rank.size,
        )
        checkpoints.from_memory = CheckpointsFromMemory(target, partial(find_writing_keepers, endpoint), finder.tell)
    return finder.copies(trained.training, rank, run.plan.job.depth, lambda: trained.view)


def find_writing_keepers(endpoint: Endpoint) -> Sequence[WritingKeeper]:
    """The keepers of a run, as those that can write its checkpoints.

    Args:
        endpoint: of the run's store, and this host.

    Raises:
        StoreLost: there is no store.
    """
    directory = KeeperDirectory.read(endpoint.connect(), endpoint.token)
    homes = () if directory is None else directory.homes
    found = []
    for home in homes:
        keepers = tuple((each.name(home.address), each.reach(home.address)) for each in homes)
        found.append(WritingKeeper(client_of(home, endpoint), keepers, home.name(home.address)))
    return found
