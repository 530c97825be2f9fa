"""What another user of the machine can do at the doors of a run: nothing that keeps it from its end."""

import os
import resource
import signal
from contextlib import suppress

import pytest

from harness.doors import AGENT, allow_few, everybody, names_of
from harness.floods import FLOODS, hear
from harness.processes import send_signal, title
from harness.sockets import listening
from harness.started import TRAIN, wait_until
from harness.strangers import as_stranger, needs_root, readable
from recycle.control.board.joinfile import JoinFile

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"

pytestmark = needs_root


@pytest.fixture
def begin(start, tmp_path):
    """Begin a run in a folder."""

    def begin(folder):
        (tmp_path / "model.toml").write_text(MODEL)
        size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", "200000"]
        kept = ["--keep-in-memory", "copies=1", "--model", str(tmp_path / "model.toml"), "-o", str(folder)]
        run = start([*TRAIN, "train", *size, *kept])
        run.wait_for("iteration 5/")
        run.door = JoinFile.read(folder / "join.json")
        run.folder = folder
        return run

    return begin


@pytest.fixture
def run(begin, tmp_path):
    return begin(tmp_path / "run")


def all_of(run):
    return everybody(run.process.pid, run.door.token)


def doors_of(run):
    """Where its own processes listen; of torch's transport, what a process listens at belongs to all who reach it."""
    names = names_of(run.door.token)
    found = [each for each in listening(all_of(run)) if each.address in names]
    # Two agents have one each.
    assert len(found) == 4 + 2, found
    return found


def limit_files(run):
    """Let them have few files open, though they had raised their limit."""
    for each in all_of(run):
        with suppress(ProcessLookupError):
            assert len(set(resource.prlimit(each, resource.RLIMIT_NOFILE))) == 1, title(each)
    allow_few(all_of(run))


def count_views(run):
    return run.output.count(": 2 of 2 servers")


def ends_well(run):
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 128 + signal.SIGTERM, run.output[-3000:]
    assert "with a checkpoint" in run.output


@pytest.mark.parametrize(
    "flood", ["idle", *(pytest.param(each, marks=pytest.mark.long) for each in FLOODS if each != "idle")]
)
def test_a_flood_by_another_user_ends_no_process_and_a_kill_meanwhile_is_survived(run, flood):
    doors = doors_of(run)
    limit_files(run)
    before = {each: title(each) for each in all_of(run)}
    with as_stranger(lambda: FLOODS[flood](doors)):
        views = count_views(run)
        (worker,) = run.processes("^recycle: W1_0")
        send_signal(worker, signal.SIGKILL)
        run.wait_for(": 1 of 2 servers")
        wait_until(lambda: count_views(run) > views)
        gone = {name for each, name in before.items() if not title(each)}
        assert gone <= {"recycle: W1_0", "recycle: agent of W1_0"}, run.output[-3000:]
        assert "keeper's process is gone" not in run.output
        ends_well(run)


def test_at_no_socket_of_a_run_another_user_is_told_anything(run):
    kinds, names, torchs = {}, names_of(run.door.token), []
    for each in listening(all_of(run)):
        titles = {title(holder) for holder in each.holders}
        if each.address in names:
            kinds[names[each.address]] = titles
        else:
            # Torch's, where any that is connected would be taken for a rank.
            assert all(name.startswith("recycle: W") for name in titles), (each, titles)
            with pytest.raises(TimeoutError):
                each.connect(0.5)
            torchs += titles
            continue
        # A keeper's guard has the keeper's for the next one.
        assert len(titles - {"recycle: keeper's guard"}) == 1, (each, titles)
    # Megatron's groups, to which no other process connects, share one.
    assert max(map(torchs.count, torchs)) <= 4, torchs
    assert kinds["store"] == {"recycle: store"}
    assert kinds["keeper"] == {"recycle: keeper", "recycle: keeper's guard"}
    assert kinds["signs"] <= {"recycle: agent of W0_0", "recycle: agent of W1_0"}
    assert len(kinds["launcher"]) == 1
    doors = doors_of(run)
    agents = [each for each in doors if names.get(each.address) == AGENT]

    def try_all():
        assert not any(hear([each for each in doors if each not in agents]).values())
        assert not any(hear(agents, 0.5).values())

    with as_stranger(try_all):
        pass
    ends_well(run)


@pytest.mark.parametrize("opened", [False, True])
def test_of_the_files_of_a_run_another_user_reads_and_writes_none(begin, reachable, opened):
    folder = reachable / "run"
    if opened:
        folder.mkdir(0o755)
    run = begin(folder)
    (worker,) = run.processes("^recycle: W1_0")
    send_signal(worker, signal.SIGKILL)
    run.wait_for("W1_0 (incarnation 1) is back")

    def try_all():
        assert os.access(folder, os.R_OK) == opened
        assert not [*readable(reachable)]

    with as_stranger(try_all):
        pass
    ends_well(run)
    assert [*run.folder.glob("checkpoints/step-*/stage-0/*")]
    assert {"events", "tensorboard", "run.json", "plan.json", "loss.svg"} <= {each.name for each in folder.iterdir()}
    with as_stranger(try_all):
        pass
