import csv
import io

import pytest

from harness.examples import QUICK, paper_job, paper_plan
from recycle.errors import UserError
from recycle.plan.clock import run_clock
from recycle.plan.export import COLUMNS, export_csv, export_torch
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan


def test_csv_has_a_row_per_compute_instruction_with_its_times():
    plan = paper_plan()
    header, *rows = csv.reader(io.StringIO(export_csv(plan)))
    assert tuple(header) == COLUMNS
    clock = run_clock(plan.job, plan.mode, plan.programs)
    assert len(rows) == sum(len(program) for program in clock.compute.values())
    work = {(row[0], row[1], row[3], row[4]): 0 for row in rows}
    for server, stage, op, home, micro_batch, start, end in rows:
        assert int(end) - int(start) == len({"F": "F", "I": "I", "W": "W", "B": "IW"}[op])
        work[server, stage, home, micro_batch] += int(end) - int(start)
    # Every micro-batch gets its three slots at every stage, and those of pipeline 1 at stage 2 elsewhere.
    assert set(work.values()) == {3}
    assert len(work) == 72
    assert {key[0] for key in work if key[1:3] == ("2", "1")} == {"W0_2", "W2_2"}
    assert min(int(row[5]) for row in rows) == 0


def test_torch_cannot_run_re_routed_work():
    with pytest.raises(UserError, match=r"W0_2 executes 2F1\.\d, which is re-routed from pipeline 1"):
        export_torch(paper_plan())
    with pytest.raises(UserError, match="pipeline 3: this plan has pipelines 0 to 2"):
        export_torch(paper_plan(failed=()), 3)


def run_in_torch(rank, folder, micro_batches):
    """One rank of a pipeline of four linear stages that runs schedule.csv; gives its weight's gradient."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    store = torch.distributed.FileStore(f"{folder}/store", 4)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=4)
    layer, data, target = torch_problem(rank, micro_batches)
    stage = PipelineStage(layer, rank, 4, torch.device("cpu"))
    loss = torch.nn.functional.mse_loss
    schedule = _PipelineScheduleRuntime([stage], micro_batches, loss_fn=loss, scale_grads=False)
    schedule._load_csv(f"{folder}/schedule.csv", format="compute_only")
    schedule.step(*([data] if rank == 0 else []), target=target if rank == 3 else None)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return layer.weight.grad.tolist()


def torch_problem(rank, micro_batches):
    """A stage's layer, the data of all micro-batches and their targets: equal in every process."""
    import torch

    torch.manual_seed(rank)
    layer = torch.nn.Linear(3, 3, bias=False)
    torch.manual_seed(99)
    return layer, torch.randn(2 * micro_batches, 3), torch.randn(2 * micro_batches, 3)


@pytest.mark.parametrize("mode", [Mode("fused", "global"), Mode("split", "staggered")])
def test_torch_runs_an_exported_plan_to_the_gradients_of_the_whole_model(tmp_path, mode):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from harness.ranks import results_of

    plan = make_plan(paper_job(micro_batches=4), (), mode, QUICK)
    (tmp_path / "schedule.csv").write_text(export_torch(plan, 1))
    gradients = results_of(4, lambda member: run_in_torch(member.rank, tmp_path, 4))
    layers = [torch_problem(rank, 4)[0] for rank in range(4)]
    _, data, target = torch_problem(0, 4)
    for part, goal in zip(data.chunk(4), target.chunk(4), strict=True):
        for layer in layers:
            part = layer(part)
        torch.nn.functional.mse_loss(part, goal).backward()
    for rank, layer in enumerate(layers):
        torch.testing.assert_close(torch.tensor(gradients[rank]), layer.weight.grad)
