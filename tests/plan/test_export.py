import csv
import io

import pytest

from recycle.errors import UserError
from recycle.plan.clock import run_clock
from recycle.plan.export import COLUMNS, export_csv, export_torch
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from tests.examples import QUICK, paper_job, paper_plan


def test_csv_has_a_row_per_compute_instruction_with_its_times():
    plan = paper_plan()
    header, *rows = csv.reader(io.StringIO(export_csv(plan)))
    assert tuple(header) == COLUMNS
    clock = run_clock(plan.job, plan.mode, plan.programs)
    assert len(rows) == sum(len(program) for program in clock.compute.values())
    work = {(row[0], row[1], row[3], row[4]): 0 for row in rows}
    for pipeline, stage, op, home, micro_batch, start, end in rows:
        assert int(end) - int(start) == len({"F": "F", "I": "I", "W": "W", "B": "IW"}[op])
        work[pipeline, stage, home, micro_batch] += int(end) - int(start)
    # Every micro-batch gets its three slots at every stage, and those of pipeline 1 at stage 2 elsewhere.
    assert set(work.values()) == {3}
    assert len(work) == 72
    assert {key[0] for key in work if key[1:3] == ("2", "1")} == {"0", "2"}
    assert min(int(row[5]) for row in rows) == 0


def test_torch_cannot_run_re_routed_work():
    with pytest.raises(UserError, match=r"W0_2 executes 2F1\.\d, which is re-routed from pipeline 1"):
        export_torch(paper_plan())
    with pytest.raises(UserError, match="pipeline 3: this plan has pipelines 0 to 2"):
        export_torch(paper_plan(failed=()), 3)


@pytest.mark.parametrize("mode", [Mode("fused", "global"), Mode("split", "staggered")])
def test_torch_loads_a_fault_free_plan_and_finds_the_transfers(tmp_path, mode):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    plan = make_plan(paper_job(), (), mode, QUICK)
    path = tmp_path / "schedule.csv"
    path.write_text(export_torch(plan, 1))
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        stage = PipelineStage(torch.nn.Linear(2, 2), 0, 4, torch.device("cpu"), group=group)
        schedule = _PipelineScheduleRuntime([stage], plan.job.micro_batches, loss_fn=torch.nn.functional.mse_loss)
        schedule._load_csv(str(path), format="compute_only")
        compute = {
            rank: [
                str(each)
                for each in actions
                if each is not None and "SEND" not in str(each) and "RECV" not in str(each)
            ]
            for rank, actions in schedule.pipeline_order_with_comms.items()
        }
    finally:
        torch.distributed.destroy_process_group()
    assert sorted(compute) == [0, 1, 2, 3]
    rows = path.read_text().splitlines()
    for rank, row in enumerate(rows):
        kept = [action for action in compute[rank] if "UNSHARD" not in action and "RESHARD" not in action]
        assert [action for action in kept if action[1] in "FIWB"] == row.split(",")
    assert any("SEND_F" in str(each) for each in schedule.pipeline_order_with_comms[0])
