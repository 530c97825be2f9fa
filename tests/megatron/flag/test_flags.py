"""The flags, and what happens to Megatron while they are off: nothing."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.examples import QUICK, paper_job
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.command.flags import find_flags
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue
from recycle.planner.source import megatron_plan


def test_without_flags_everything_is_stock():
    flags, rest = find_flags(["--num-layers", "4", "--recompute"])
    assert not flags.on
    assert rest == ["--num-layers", "4", "--recompute"]


def test_flags_are_read_and_taken_from_what_the_script_gets():
    arguments = "--lr 1 --pipeline-schedule recycle --recycle-dead W1_2,W0_3 --recycle-budget 500ms"
    flags, rest = find_flags(f"{arguments} --recycle-catalogue plans.zip --recycle-record runs/7".split())
    assert flags.on
    assert flags.catalogue == Path("plans.zip")
    assert flags.dead == (Server(1, 2), Server(0, 3))
    assert flags.budget == 0.5
    assert flags.record == Path("runs/7")
    assert rest == ["--lr", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline-schedule", "fast"], "--pipeline-schedule: invalid choice: 'fast'"),
        (["--recycle-dead", "1_2"], "--recycle-dead: server '1_2'"),
        (["--recycle-dead", "W0_0", "--recycle-dead=W1_0"], "--recycle-dead: it was given 2 times; give it once"),
        (["--recycle-budget", "5x"], "--recycle-budget: '5x' is no duration"),
        (["--recycle-keep-in-memory", "copies=0"], "--recycle-keep-in-memory: copies=0: give off, copies=N"),
        (["--recycle-resume", "--recycle-record", "runs/7"], "--recycle-resume: it takes the --recycle-keep-in-memory"),
        (["--recycle-resume", "--recycle-keep-in-memory", "copies=1"], "and the --recycle-record of the start"),
    ],
)
def test_wrong_values_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        find_flags(arguments)


def start(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "recycle.megatron", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_runs_as_if_started_by_itself(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport beside\n"
        "assert __name__ == '__main__' and beside.VALUE == 7\n"
        "assert 'recycle.megatron.flag.start.dropin' not in sys.modules\n"
        "print(sys.argv)\n"
    )
    done = start(script, "--lr", "1", "--pipeline-schedule", "stock", "--recycle-budget", "1s")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[str(script), '--lr', '1']}\n"


FROM_FILE = [__file__, "--pipeline-schedule", "recycle", "--yaml-cfg=job.yaml"]


@pytest.mark.parametrize("arguments", [[], ["nothing.py"], [__file__, "--recycle-dead", "x"], FROM_FILE])
def test_a_mistake_is_one_line(arguments):
    done = start(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("recycle: ")


def test_importing_recycle_changes_nothing_of_megatron_and_torch():
    code = """
import importlib, pkgutil, sys
import torch, megatron.core
import megatron.core.pipeline_parallel.schedules, megatron.core.tensor_parallel.layers
import megatron.core.tensor_parallel.random, megatron.core.distributed
owners = [each for name, each in sys.modules.items() if name.startswith("megatron.")]
owners += [torch, torch.cuda, torch.Tensor, torch.distributed]
owners += [megatron.core.tensor_parallel.layers.LinearWithGradAccumulationAndAsyncCommunication]
before = [dict(vars(owner)) for owner in owners]
import recycle.megatron
for module in pkgutil.iter_modules(recycle.megatron.__path__):
    if module.name != "__main__":
        importlib.import_module(f"recycle.megatron.{module.name}")
for owner, names in zip(owners, before):
    for name, value in names.items():
        assert vars(owner)[name] is value, f"{owner}: {name} was replaced"
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def arguments(**changes):
    values = {
        "data_parallel_size": 3,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": None,
        "micro_batch_size": 2,
        "global_batch_size": 36,
        "distributed_backend": "gloo",
        "transformer_impl": "local",
        "dataloader_type": "single",
    }
    return SimpleNamespace(**values | changes)


def flags_of(*words):
    return find_flags(["--pipeline-schedule", "recycle", "--recycle-budget", "100ms", *map(str, words)])[0]


def source(arguments, *words):
    from recycle.megatron.flag.start.dropin import plan_source

    flags = flags_of(*words)
    return plan_source(arguments, flags, flags.read_catalogue(), megatron_plan)


def chosen(arguments, *words):
    from recycle.megatron.flag.start.dropin import choose_plan

    return choose_plan(arguments, flags_of(*words), lambda: source(arguments, *words))


def test_without_failures_the_plan_is_megatrons_own_order():
    plan = chosen(arguments(), "--recycle-dead", "W1_2")
    assert (plan.job.pipelines, plan.job.depth, plan.job.micro_batches) == (3, 4, 6)
    assert (plan.mode.backward, plan.mode.optimizer, len(plan.dead)) == ("fused", "global", 0)
    for stage in range(4):
        program = [each for each in plan.programs[Server(1, stage)] if each.op.phases]
        ahead = 4 - stage
        assert "".join(each.op.name for each in program) == "F" * ahead + "BF" * (6 - ahead) + "B" * ahead
        assert [each.micro_batch for each in program if each.op is Op.B] == list(range(6))
    assert plan.period == plan.baseline


def test_failures_are_planned_around_with_a_split_backward_pass_where_it_works():
    split, fused = (source(arguments(gradient_accumulation_fusion=each)).plan([Server(1, 2)]) for each in (False, True))
    assert split.dead == fused.dead == {Server(1, 2)}
    assert (split.mode.backward, fused.mode.backward) == ("split", "fused")
    assert split.period < fused.period


def test_a_staggered_job_has_staggered_plans_and_no_others(tmp_path):
    plan = chosen(arguments(), "--recycle-stagger")
    assert (plan.mode.backward, plan.mode.optimizer) == ("fused", "staggered")
    path = tmp_path / "plans.zip"
    make_catalogue(path, paper_job(pipelines=2, stages=2, micro_batches=4), Mode(), 1, QUICK, "lowered", print)
    job = {"data_parallel_size": 2, "pipeline_model_parallel_size": 2, "global_batch_size": 16}
    chosen(arguments(**job), "--recycle-stagger", "--recycle-catalogue", path)
    with pytest.raises(UserError, match=r"its plans are for a staggered optimizer, .* add --recycle-stagger"):
        chosen(arguments(**job), "--recycle-catalogue", path)


def test_what_cannot_be_planned_is_refused_before_training_starts():
    sharded = {"use_distributed_optimizer": True}
    chosen(arguments(**sharded))
    with pytest.raises(UserError, match=r"num_distributed_optimizer_instances is 2: .* leave it out"):
        chosen(arguments(**sharded, num_distributed_optimizer_instances=2))
    with pytest.raises(UserError, match=r"use_distributed_optimizer is on: .* turn it off"):
        chosen(arguments(**sharded), "--recycle-stagger")
    with pytest.raises(UserError, match=r"fp16 is on: .* use --bf16"):
        chosen(arguments(fp16=True), "--recycle-stagger")
    with pytest.raises(UserError, match="its last server is W2_3"):
        chosen(arguments(), "--recycle-dead", "W5_0")
    with pytest.raises(UserError, match="stage 1 has no live server"):
        chosen(arguments(), "--recycle-dead", "W0_1,W1_1,W2_1")
