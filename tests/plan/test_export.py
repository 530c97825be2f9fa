import csv
import io

from harness.examples import paper_plan
from recycle.plan.clock import run_clock
from recycle.plan.export import COLUMNS, export_csv


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
