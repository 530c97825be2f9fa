import pytest

from harness.examples import DEAD, paper_plan
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Op
from recycle.plan.memory import peak_memory
from recycle.record.planned import timeline
from tests.view.samples import small


@pytest.fixture(scope="module")
def plan():
    return paper_plan()


def test_every_compute_instruction_and_update_has_one_span_per_iteration(plan):
    line = timeline(plan, 3)
    for server, program in plan.programs.items():
        spans = [span for span in line.spans if span.server == server and span.lane == "compute"]
        assert [span.iteration for span in spans] == sorted(span.iteration for span in spans)
        for iteration in range(3):
            mine = [span.instruction for span in spans if span.iteration == iteration]
            assert mine == [each for each in program if not each.op.is_transfer]


def test_times_are_those_of_the_clock_and_iterations_are_a_period_apart(plan):
    clock = run_clock(plan.job, plan.mode, plan.programs)
    line = timeline(plan, 2)
    assert line.period == clock.period
    assert min(span.start for span in line.spans) == 0
    for server, starts in clock.start.items():
        spans = [span for span in line.spans if span.server == server and span.instruction.op.is_compute]
        first, second = spans[: len(starts)], spans[len(starts) :]
        shift = first[0].start - starts[0]
        assert [span.start - shift for span in first] == list(starts)
        assert [after.start - before.start for before, after in zip(first, second, strict=True)] == [30] * len(starts)


def test_compute_spans_of_a_server_never_overlap(plan):
    last = {}
    for span in timeline(plan, 2).spans:
        if span.lane == "compute":
            assert last.get(span.server, 0) <= span.start
            last[span.server] = span.end


def test_samples_rise_to_the_peak_and_fall_to_nothing(plan):
    line = timeline(plan, 2)
    for server, program in plan.programs.items():
        mine = [sample.memory for sample in line.samples if sample.server == str(server)]
        assert max(mine) == peak_memory(plan.job, server, program)
        assert mine[-1] == 0


def test_transfers_take_the_latency_of_their_boundary_from_the_end_of_their_result():
    line = timeline(small(stages=2, micro_batches=2, latency=4))
    ends = {span.instruction: span.end for span in line.spans}
    sends = [span for span in line.spans if span.lane == "communication"]
    assert len(sends) == 4
    for send in sends:
        made = {Op.SEND_F: (Op.F,), Op.SEND_B: (Op.I, Op.B)}[send.instruction.op]
        makers = [each for each in ends if each.op in made and each.stage == send.server.stage]
        assert send.start in {ends[each] for each in makers if each.micro_batch == send.instruction.micro_batch}
        assert send.end - send.start == 4


def test_failures_and_optimizer_steps_are_instants(plan):
    instants = timeline(plan, 2).instants
    assert [each.server for each in instants if each.kind == "failure"] == list(map(str, DEAD))
    assert len([each for each in instants if each.kind == "optimizer step"]) == 2 * plan.job.depth
    assert timeline(plan).failed == DEAD
