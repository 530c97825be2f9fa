from hypothesis import given, settings

from harness.examples import paper_job, paper_plan
from recycle.job import Server
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.planner.model.lowering import add_transfers, add_updates, fuse, lower
from tests.strategies import scheduled


def program(text):
    return [Instruction.parse(each) for each in text.split()]


def texts(instructions):
    return " ".join(map(str, instructions))


@given(scheduled())
@settings(max_examples=100)
def test_lowering_changes_neither_period_nor_makespan_bound(case):
    problem, compute = case
    before = run_clock(problem.job, problem.mode, compute)
    after = run_clock(problem.job, problem.mode, lower(problem.job, run_clock(problem.job, problem.mode, compute))[1])
    assert after.period == before.period
    if not problem.staggered:
        assert after.makespan == before.makespan


@given(scheduled())
@settings(max_examples=60)
def test_without_its_additions_a_lowered_program_is_the_compute_program(case):
    problem, compute = case
    lowered = lower(problem.job, run_clock(problem.job, problem.mode, compute))[1]
    for server, instructions in lowered.items():
        phases = [
            (phase, each.home, each.micro_batch)
            for each in instructions
            if each.op.is_compute
            for phase in each.op.phases
        ]
        assert phases == [(phase, each.home, each.micro_batch) for each in compute[server] for phase in each.op.phases]


def test_a_pair_is_fused_only_where_nobody_waits_for_the_input_gradient():
    job = paper_job(pipelines=1, stages=2, micro_batches=2)
    compute = {
        Server(0, 0): program("0F0.0 0F0.1 0I0.0 0W0.0 0I0.1 0W0.1"),
        Server(0, 1): program("1F0.0 1I0.0 1W0.0 1F0.1 1I0.1 1W0.1"),
    }
    fused = fuse(job, run_clock(job, Mode(), compute))
    # Stage 0 has nobody behind it. It waits for both gradients of stage 1, so there nothing may be fused.
    assert texts(fused.compute[Server(0, 0)]) == "0F0.0 0F0.1 0B0.0 0B0.1"
    assert texts(fused.compute[Server(0, 1)]) == texts(compute[Server(0, 1)])
    assert [fused.end[Server(0, 0)][place] for place in (2, 3)] == [5, 8]


def test_both_ends_of_a_transfer_are_placed_at_the_moment_of_its_producer():
    job = paper_job(pipelines=1, stages=2, micro_batches=1)
    compute = {Server(0, 0): program("0F0.0 0B0.0"), Server(0, 1): program("1F0.0 1B0.0")}
    clock = run_clock(job, Mode("fused"), compute)
    lists = add_updates(clock, add_transfers(job, clock))
    assert texts(lists[Server(0, 0)]) == "0F0.0 0SEND_F0.0>W0_1 0RECV_B0.0<W0_1 0B0.0 0REDUCE 0STEP"
    assert texts(lists[Server(0, 1)]) == "1RECV_F0.0<W0_0 1F0.0 1B0.0 1SEND_B0.0>W0_0 1REDUCE 1STEP"


def test_re_routed_work_crosses_pipelines():
    plan = paper_plan()
    crossing = [
        each
        for server, instructions in plan.programs.items()
        for each in instructions
        if each.peer is not None and each.peer.pipeline != server.pipeline
    ]
    # Six micro-batches of pipeline 1 go to stage 2 elsewhere and come back, forward and backward, with two ends each.
    assert len(crossing) == 6 * 2 * 2 * 2
    assert {each.home for each in crossing} == {1}
    assert {each.op for each in crossing} == {Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B}
