"""A GPT with dropout is trained through failures, and every iteration's loss is that of the run without them."""

import os
import signal
import time

import pytest

from harness.processes import send_signal
from harness.waiting import ForReturn, wait_between
from recycle.control.membership.durations import Durations
from recycle.errors import RunFailed
from recycle.faults.menu import Fault, Kind
from recycle.job import Server
from recycle.megatron.gpt import checkpointing
from recycle.megatron.gpt.checkpointing import Checkpointing, shard
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.server import GptServer
from recycle.plan.instruction import Op
from recycle.record.reading import load_lines
from recycle.record.recording import DeathLine, EndedLine, EvaluationLine, IterationLine
from recycle.runtime.checkpoint_folders import checkpoints, folder_of
from recycle.runtime.errors import ConnectionLost, RunError
from recycle.runtime.recover import gathering, standstill
from recycle.view.watching import WatchedRun
from tests.survival.trained import ITERATIONS, SAME, Trained, fault
from tests.view.test_watching import look

pytestmark = pytest.mark.usefixtures("short_text")


@pytest.fixture(scope="module")
def reference(shared_runs):
    return Trained.undisturbed(shared_runs, evaluate_every=4)


def test_kills_and_a_rejoin_leave_the_losses_as_they_are(tmp_path, reference, monkeypatch):
    wait_between(ForReturn(Server(1, 0), first=5), monkeypatch.setattr)
    faults = [fault(Kind.KILL, "W1_0", 2, Op.F), fault(Kind.KILL, "W2_1", 4, Op.STEP), fault(Kind.JOIN, "W1_0", 5)]
    run = Trained(tmp_path / "run", *faults, evaluate_every=4)
    run.require_same(reference, IterationLine, EvaluationLine)
    assert [len(each.servers) for each in run.views] == [6, 5, 4, 5], run.story
    # A killed process has not said that it ends.
    said = {line.name for line in load_lines(tmp_path / "run") if isinstance(line, EndedLine)}
    assert said == {"launcher", "W0_0", "W0_1", "W1_0#1", "W1_1", "W2_0"}
    state = look(WatchedRun(tmp_path / "run"))
    assert (state.ended, state.step, state.iterations) == (True, ITERATIONS, ITERATIONS)


def test_a_gradient_that_is_spoiled_once_is_made_again(tmp_path, reference):
    run = Trained(tmp_path / "run", fault(Kind.NAN))
    run.require_same(reference)
    assert [(each.epoch, len(each.servers), each.step) for each in run.views] == [(0, 6, 0), (1, 6, 3)]
    assert run.of(DeathLine) == []


def test_a_gradient_that_is_spoiled_twice_ends_the_run(tmp_path, monkeypatch):
    # The menu's fault happens once; here every gradient of one iteration is spoiled, as by a bad sample.
    monkeypatch.setattr("recycle.runtime.step.gradient_sums.FlatGradients.are_finite", lambda *_: False)
    run = Trained(tmp_path / "run")
    assert "iteration 1: the gradient of stage" in run.error
    assert "also when it was made again" in run.error


def test_what_fails_again_and_again_without_a_death_ends_the_run(tmp_path, monkeypatch):
    def fail(*_):
        raise ConnectionLost("NCCL: invalid argument")

    monkeypatch.setattr("recycle.runtime.recover.recovery.MOST", 4)
    monkeypatch.setattr("recycle.runtime.step.gradient_sums.FlatGradients.are_finite", fail)
    run = Trained(tmp_path / "run")
    assert "iteration 1 was begun 4 times by the same servers, and never made: NCCL: invalid argument" in run.error
    # A view whose end is heard of while it is built is none.
    assert 1 <= len(run.views) <= 4
    assert {(len(each.servers), each.step) for each in run.views} == {(6, 0)}
    assert run.of(DeathLine) == []


def test_a_full_disk_is_a_warning_until_the_last_checkpoint_and_leaves_the_one_before(tmp_path, reference):
    run = Trained(tmp_path / "run", fault(Kind.DISK_FULL, "W0_0", step=5), checkpoint_every=4)
    recording, warning = run.texts("warning")
    assert recording.startswith(f"the recording in {tmp_path / 'run' / 'events'} cannot be written: File too large")
    for step, text in ((8, warning), (12, run.error)):
        assert f"step-{step:08d}" in text
        assert "cannot be written" in text
        assert "Earlier checkpoints are as they were" in text
    assert run.steps == [4]
    assert run.of(DeathLine) == []
    told, expected = run.losses(), reference.losses()
    assert list(told) == list(expected)
    assert all(losses == pytest.approx(expected[step], rel=SAME) for step, losses in told.items())


def is_of(folder, step, part=""):
    """Whether a part of a step's checkpoint is written to a folder."""
    return f".step-{step:08d}." in str(folder) and str(folder).endswith(part)


def test_a_checkpoint_that_could_not_be_written_is_tried_again(tmp_path, reference, monkeypatch):
    write = checkpointing.write_shard

    def fail_at_first(folder, state):
        if is_of(folder, 3):
            raise RunFailed("checkpoint: step-3 cannot be written: No space left on device")
        write(folder, state)

    monkeypatch.setattr(checkpointing, "write_shard", fail_at_first)
    monkeypatch.setattr(checkpointing, "AGAIN", 0.0)
    monkeypatch.setattr(checkpointing, "COSTS", 0)
    monkeypatch.setattr(Run, "is_due", lambda run, step: step == 3)
    run = Trained(tmp_path / "run", evaluate_every=4)
    again, last = run.steps
    assert 3 < again < last == ITERATIONS
    assert set(run.texts("warning")) == {"checkpoint: step-3 cannot be written: No space left on device"}
    run.require_same(reference, IterationLine, EvaluationLine)


def test_the_last_checkpoint_is_what_a_run_ends_with_where_it_cannot_be_completed(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recycle.runtime.step.checkpoint._put", fail)
    run = Trained(tmp_path / "run")
    assert run.error.startswith(f"checkpoint: {run.run.checkpoints / 'step-00000012'} cannot be written: ")
    assert run.of(DeathLine) == []


@pytest.mark.parametrize("last", [8, ITERATIONS])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, reference, monkeypatch, last):
    save, write = Checkpointing.save, checkpointing.write_shard

    def die_at_last(saving, step, network):
        if step == last and network.server == Server(0, 1) and network.view.epoch == 0:
            folder = saving._run.checkpoints / f".step-{last:08d}.0.partial" / "stage-1"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "half").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        save(saving, step, network)

    def write_where_there_is_room_for_one(folder, state):
        if any(each not in folder.parents for each in (tmp_path / "run" / "checkpoints").glob(".step-*")):
            raise RunFailed("no room for another one")
        write(folder, state)

    monkeypatch.setattr(Checkpointing, "save", die_at_last)
    monkeypatch.setattr(checkpointing, "write_shard", write_where_there_is_room_for_one)
    run = Trained(tmp_path / "run", checkpoint_every=4)
    run.require_same(reference)
    assert [each.server for each in run.of(DeathLine)][:1] == ["W0_1"]
    assert run.texts("warning") == []
    assert run.steps == [8, 12]


def test_a_kill_during_the_evaluation(tmp_path, reference, monkeypatch):
    # Faults are placed before instructions of an iteration, and an evaluation has none of them.
    between = GptServer.between

    def die_at_four(server, step, *, save, settle):
        if step == 4 and server._server == Server(1, 1) and server.network.view.epoch == 0:
            monkeypatch.setattr(server.training._stage, "evaluate", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        between(server, step, save=save, settle=settle)

    monkeypatch.setattr(GptServer, "between", die_at_four)
    run = Trained(tmp_path / "run", evaluate_every=4)
    run.require_same(reference, IterationLine, EvaluationLine)
    assert {each.server for each in run.of(DeathLine)} == {"W1_1"}


def test_a_lost_stage_is_restored_from_the_checkpoint_by_itself(tmp_path, reference):
    faults = [fault(Kind.KILL, f"W{pipeline}_1", 6, Op.F) for pipeline in range(3)]
    run = Trained(tmp_path / "run", *faults, checkpoint_every=4)
    run.require_same(reference)
    assert any(each.restore == "checkpoint" and each.step == 4 for each in run.views)


def test_a_checkpoint_that_is_damaged_while_the_run_goes_on_is_set_aside(tmp_path, reference, monkeypatch):
    complete = checkpointing.complete

    def complete_and_damage(root, manifest, *others):
        complete(root, manifest, *others)
        if manifest.step == 4:
            (path,) = (folder_of(root, 4) / shard(1, 0)).glob("*.distcp")
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
            # One that is being copied to the folder, or removed from it.
            folder_of(root, 99).mkdir(exist_ok=True)

    monkeypatch.setattr(checkpointing, "complete", complete_and_damage)
    faults = [fault(Kind.KILL, f"W{pipeline}_1", 5, Op.F) for pipeline in range(3)]
    run = Trained(tmp_path / "run", *faults, checkpoint_every=2)
    run.require_same(reference)
    *before, last = [each.step for each in run.views if each.restore == "checkpoint"]
    # A server that has read another stage of the damaged one may begin its view before it hears of that.
    assert (set(before) <= {4}, last) == (True, 2), run.story
    (told,) = [text for text in run.texts("warning") if "set aside" in text]
    assert "__0_0.distcp is not as it was written: the checkpoint is set aside as" in told


@pytest.mark.parametrize("failing", ["W1_1", "all servers"])
def test_what_one_server_lacks_while_it_trains_is_its_own_death(tmp_path, reference, monkeypatch, failing):
    iterate = GptServer.iterate

    def fail_at_five(server, step):
        if step == 5 and failing in (str(server._server), "all servers"):
            raise RunError("nothing can listen at 127.0.0.1")
        iterate(server, step)

    monkeypatch.setattr(GptServer, "iterate", fail_at_five)
    run = Trained(tmp_path / "run")
    told = {text for text in run.texts("warning") if text.endswith(" failed: nothing can listen at 127.0.0.1")}
    if failing == "W1_1":
        assert told == {"W1_1 failed: nothing can listen at 127.0.0.1"}
        run.require_same(reference)
        assert {each.server for each in run.of(DeathLine)} == {"W1_1"}
    else:
        # Some see that the others of their stage are dead before they fail themselves: any of them.
        assert told
        assert run.error.startswith(("no server reached the end of the run: ", "no live server of stage "))


def test_without_the_store_a_checkpoint_is_made_and_named_when_a_server_fails(tmp_path, monkeypatch):
    folder, process = tmp_path / "run", tmp_path / "process"
    begin = GptServer.__init__

    def begin_and_tell(server, run, which, *arguments, **keywords):
        if which == Server(1, 0):
            process.write_text(str(os.getpid()))
        begin(server, run, which, *arguments, **keywords)

    def kill_when_saved(_):
        if process.exists() and checkpoints(folder / "checkpoints"):
            send_signal(int(process.read_text()), signal.SIGKILL)
            process.unlink()

    monkeypatch.setattr(GptServer, "__init__", begin_and_tell)
    loss = Fault(Kind.STORE_LOSS, step=3)
    run = Trained(folder, loss, on_event=kill_when_saved, iterations=2000)
    (step,) = run.steps
    assert f"while the store was lost: go on from step {step} with --resume" in run.error


def test_a_disk_that_is_slower_than_a_transfer_may_be_is_waited_for(tmp_path, reference, monkeypatch):
    write, complete = checkpointing.write_shard, checkpointing.complete

    def write_slowly(folder, state):
        if is_of(folder, 4, shard(1, 0)):
            time.sleep(10)
        write(folder, state)

    def complete_slowly(root, manifest, *arguments):
        if manifest.step == 4:
            time.sleep(10)
        complete(root, manifest, *arguments)

    monkeypatch.setattr(checkpointing, "write_shard", write_slowly)
    monkeypatch.setattr(checkpointing, "complete", complete_slowly)
    durations = Durations(beat=0.5, silence=4.0, hang=4.0, rebuild=4.0, answer=4.0, transfer=4.0)
    run = Trained(tmp_path / "run", checkpoint_every=4, durations=durations)
    run.require_same(reference)
    assert len(run.views) == 1, run.story
    assert run.of(DeathLine) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "what", "victim"),
    [
        ("give_up", "a look at checkpoints", "W0_0"),
        ("folder_of", "a look at checkpoints", "W0_0"),
        ("write_shard", "a save", "W0_1"),
    ],
)
def test_who_uses_a_disk_that_hangs_is_left_behind(tmp_path, reference, monkeypatch, call, what, victim):
    use, hung = getattr(checkpointing, call), tmp_path / "hung"

    def hang_once(path, *more):
        written = (tmp_path / "run" / "checkpoints" / "step-00000004").exists()
        if written and (call != "write_shard" or is_of(path, 8, shard(1, 0))) and not hung.exists():
            hung.touch()
            time.sleep(3600)
        return use(path, *more)

    monkeypatch.setattr(checkpointing, call, hang_once)
    monkeypatch.setattr(standstill, "DISK", 2.0)
    monkeypatch.setattr(gathering, "DISK", 2.0)
    durations = Durations(beat=0.25, silence=20.0, hang=20.0, rebuild=20.0, answer=30.0)
    run = Trained(tmp_path / "run", checkpoint_every=4, durations=durations)
    run.require_same(reference)
    assert {each.server for each in run.of(DeathLine)} == {victim}, run.story
    assert f"standstill: {what} has taken" in str(run.texts("warning"))
    assert run.steps == [8, 12]


@pytest.mark.long
def test_who_writes_to_a_slow_disk_is_waited_for(tmp_path, reference, monkeypatch):
    write, path = checkpointing.write_shard, tmp_path / "process"
    begin = GptServer.__init__

    def begin_and_tell(server, run, which, *arguments, **keywords):
        if which == Server(1, 0):
            path.write_text(str(os.getpid()))
        begin(server, run, which, *arguments, **keywords)

    def write_slowly(folder, state):
        if is_of(folder, 4, shard(1, 0)) and path.exists():
            os.kill(int(path.read_text()), signal.SIGKILL)
            path.unlink()
            time.sleep(20)
        write(folder, state)

    monkeypatch.setattr(GptServer, "__init__", begin_and_tell)
    monkeypatch.setattr(checkpointing, "write_shard", write_slowly)
    durations = Durations(beat=0.25, silence=10.0, hang=10.0, rebuild=10.0, answer=10.0)
    run = Trained(tmp_path / "run", checkpoint_every=4, durations=durations)
    run.require_same(reference)
    assert {each.server for each in run.of(DeathLine)} == {"W1_0"}, run.story
    assert run.steps == [8, 12]
