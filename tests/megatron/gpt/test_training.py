"""Whole runs: they learn, they stop and go on as if they had not stopped, and what cannot be done is one clear line."""

import os
import signal
from functools import partial
from pathlib import Path

import msgspec
import pytest

from harness.examples import paper_job, plan_around
from recycle.errors import RunFailed
from recycle.faults.menu import Faults
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.training import Run, set_earlier_aside, train
from recycle.plan.document import load_plan
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.record.reading import load_recording
from recycle.record.recording import EvaluationLine, InstantLine, IterationLine
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.errors import RunError
from recycle.runtime.execute import notices

JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
MODEL = ModelOptions(2, 32, 2, 16, micro_batch_size=2, tied=True, dropout=0.1, learning_rate=0.01)


pytestmark = pytest.mark.usefixtures("short_text")


plan = partial(plan_around, JOB)


def make(failed):
    raise AssertionError("nobody fails here")


def losses(run):
    """Of every iteration and evaluation, by step."""
    trained, held_out = {}, {}

    def watch(event):
        for kind, table in ((IterationLine, trained), (EvaluationLine, held_out)):
            if isinstance(event, kind) and event.losses:
                # Every server of the last stage tells all losses.
                assert table.setdefault(event.step, event.losses) == event.losses

    train(run, watch, make, Faults())
    return ({step: sorted(each) for step, each in sorted(table.items())} for table in (trained, held_out))


def test_a_run_learns_and_leaves_its_time_line(tmp_path):
    run = Run(plan("W1_1"), MODEL, 20, tmp_path, evaluate_every=20)
    trained, held_out = losses(run)
    assert [len(each) for each in trained.values()] == [4] * 20
    assert list(held_out) == [0, 20]
    assert sum(held_out[20]) < 0.8 * sum(held_out[0])
    timeline = load_recording(tmp_path)
    assert timeline.source == "measured"
    assert {span.server for span in timeline.spans} == set(run.plan.programs)
    steps = [span for span in timeline.spans if span.instruction.op is Op.STEP]
    assert len(steps) == 20 * 3
    assert min(span.start for span in timeline.spans) == 0
    assert load_plan(tmp_path / "plan.json") == run.plan


def test_a_run_that_stopped_goes_on_to_the_bit_and_without_a_server_all_but(tmp_path):
    whole, _ = losses(Run(plan(), MODEL, 6, tmp_path / "whole"))
    parts = Run(plan(), MODEL, 4, tmp_path / "parts", checkpoint_every=1)
    first, _ = losses(parts)
    assert [each.name for each in checkpoints(parts.checkpoints)] == ["step-00000003", "step-00000004"]
    second, _ = losses(msgspec.structs.replace(parts, iterations=6, resume=True))
    assert first | second == whole
    degraded = msgspec.structs.replace(parts, plan=plan("W0_0"), iterations=8, resume=True)
    _, held_out = losses(msgspec.structs.replace(degraded, evaluate_every=2))
    assert list(held_out) == [6, 8]


def damage(run, name):
    (path,) = (checkpoints(run.checkpoints)[-1] / "stage-0").rglob(name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_what_cannot_go_on_says_why(tmp_path):
    run = Run(plan(), MODEL, 2, tmp_path)
    with pytest.raises(RunError, match=r"resume: there is no checkpoint in .* start without --resume"):
        losses(msgspec.structs.replace(run, resume=True))
    losses(run)
    with pytest.raises(RunError, match="there is a run in it; go on with --resume"):
        losses(run)
    with pytest.raises(RunError, match=r"iterations is 2, and .* has 2 of them already"):
        losses(msgspec.structs.replace(run, resume=True))
    more = msgspec.structs.replace(run, iterations=4, resume=True)
    wide = msgspec.structs.replace(MODEL, hidden=64)
    with pytest.raises(RunError, match="its hidden is 32, and this run's is 64"):
        losses(msgspec.structs.replace(more, model=wide))
    damage(run, "*.distcp")
    with pytest.raises(RunError, match=r"resume: no checkpoint in .* is whole: .*stage-0/.* is not as it was written"):
        losses(more)


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole(tmp_path):
    run = Run(plan(), MODEL, 2, tmp_path / "run", checkpoint_every=1)
    losses(run)
    damage(run, "*.distcp")
    told = []
    train(msgspec.structs.replace(run, iterations=3, resume=True), told.append, None, Faults())
    assert {each.step for each in told if isinstance(each, IterationLine)} == {1, 2}
    (warning,) = [each.text for each in told if isinstance(each, InstantLine) and each.kind == "warning"]
    assert "is not as it was written: the checkpoint is set aside as" in warning
    assert "step-00000001 is taken" in warning


def test_a_run_that_is_to_go_on_from_its_own_folder_begins_where_that_has_no_checkpoint_yet(tmp_path):
    whole, _ = losses(Run(plan(), MODEL, 3, tmp_path / "whole"))
    queued = Run(plan(), MODEL, 2, tmp_path / "run", resume_from=tmp_path / "run")
    before, _ = losses(queued)
    after, _ = losses(msgspec.structs.replace(queued, iterations=3))
    assert (list(before), list(after)) == ([0, 1], [2])
    assert before | after == whole


def test_what_an_earlier_start_left_to_look_at_is_not_gone_on_with(tmp_path):
    run = Run(plan(), MODEL, 2, tmp_path)
    for start in (1, 2):
        (tmp_path / "events").mkdir()
        (tmp_path / "events" / "launcher.jsonl").write_text(str(start))
        (tmp_path / "faults.jsonl").touch()
        set_earlier_aside(msgspec.structs.replace(run, resume=True))
        assert (tmp_path / "events").is_dir()
        set_earlier_aside(run)
        aside = tmp_path / f"earlier-{start}"
        assert sorted(each.name for each in aside.iterdir()) == ["events", "faults.jsonl"]
        assert (aside / "events" / "launcher.jsonl").read_text() == str(start)
    set_earlier_aside(run)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["earlier-1", "earlier-2"]


def test_servers_that_are_told_to_end_in_an_iteration_leave_after_the_next_one(tmp_path, monkeypatch):
    iterate = GptServer.iterate

    def told(server, step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        iterate(server, step)

    monkeypatch.setattr(GptServer, "iterate", told)
    # Short iterations would say it only now and then.
    monkeypatch.setattr(notices, "EVERY", 1)
    with pytest.raises(RunFailed, match=r"^told to end: training has ended after 5 iterations, with a checkpoint; "):
        losses(Run(plan(), MODEL, 20, tmp_path))


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    wild = msgspec.structs.replace(MODEL, learning_rate=1e30)
    with pytest.raises(
        RunFailed, match=r"iteration \d: the (loss of micro-batch|gradient of stage) .* is n.*; .* smaller"
    ):
        losses(Run(plan(), wild, 10, tmp_path))
    assert checkpoints(tmp_path / "checkpoints") == []


def test_what_cannot_be_trained_says_why(tmp_path):
    with pytest.raises(RunError, match="decay_steps is 3: a cosine decay ends after the warm-up, which takes 4 steps"):
        losses(Run(plan(), msgspec.structs.replace(MODEL, decay="cosine", warm_up=4, decay_steps=3), 1, tmp_path))
    seven = msgspec.structs.replace(MODEL, heads=7, hidden=28, tensor_parallel=7, sequence_parallel=True)
    with pytest.raises(RunError, match=r"sequence is \d+: with sequence_parallel it must be a multiple of .* \(7\)"):
        losses(Run(plan(), seven, 1, tmp_path))
    with pytest.raises(RunError, match="layers is 3: 2 stages need a multiple of 2"):
        losses(Run(plan(), msgspec.structs.replace(MODEL, layers=3), 1, tmp_path))
    with pytest.raises(RunError, match="vocabulary is 100: text is read as bytes"):
        losses(Run(plan(), msgspec.structs.replace(MODEL, vocabulary=100), 1, tmp_path))
    with pytest.raises(RunError, match=r"text: .* cannot be read: No such file"):
        losses(Run(plan(), MODEL, 1, tmp_path, text=tmp_path / "none.txt"))


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 10**9},
        {"layers": 10**9, "hidden": 2},
        {"hidden": 10**12},
        {"vocabulary": 10**12},
        {"sequence": 10**11},
        {"micro_batch_size": 10**10},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_model_that_no_memory_holds_is_refused_before_any_server_is_started(tmp_path, changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(RunError, match=rf"{name} is {value}\b.* take.*, and this host may use .*; lower .*{name}"):
        losses(Run(plan(), msgspec.structs.replace(MODEL, **changes), 1, tmp_path))
    assert not [*tmp_path.iterdir()]


def test_a_text_without_an_end_is_refused():
    with pytest.raises(RunError, match="text: /dev/zero is a device or a pipe"):
        load_text(Path("/dev/zero"), MODEL)


def test_with_a_global_optimizer_the_whole_gradient_is_clipped(tmp_path):
    # A gradient clipped to next to nothing leaves weight decay alone to move the parameters.
    tight = msgspec.structs.replace(MODEL, clip=1e-30, weight_decay=0.0, dropout=0.0)
    run = Run(plan(mode=Mode("fused", "global")), tight, 2, tmp_path, evaluate_every=1)
    _, held_out = losses(run)
    assert held_out[0] == pytest.approx(held_out[2])


def test_with_tensor_parallelism_a_run_goes_on_without_a_server(tmp_path):
    # Dropout draws from streams of each tensor-parallel rank, so without it the loss is that of one rank per server.
    model = msgspec.structs.replace(MODEL, dropout=0.0, clip=0.5)
    single, _ = losses(Run(plan(), model, 3, tmp_path / "single"))
    split = msgspec.structs.replace(model, tensor_parallel=2)
    first = Run(plan(), split, 2, tmp_path / "split")
    before, _ = losses(first)
    shards = sorted(each.name for each in (checkpoints(first.checkpoints)[-1] / "stage-1").iterdir())
    assert shards == ["tensor-0", "tensor-1"]
    # Whether sequences are divided as well changes the order of some sums.
    split = msgspec.structs.replace(split, sequence_parallel=True)
    second = msgspec.structs.replace(first, model=split, plan=plan("W1_0"), iterations=3, resume=True)
    after, _ = losses(second)
    for step, each in (before | after).items():
        assert each == pytest.approx(single[step], rel=1e-5)
