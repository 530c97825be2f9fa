"""The clock against an independent simulation: the same order, iteration after iteration, each server on its own."""

from itertools import pairwise

import pytest
from hypothesis import given, settings

from harness.examples import paper_job, programs_of
from recycle.job import Job, Server, Stage
from recycle.plan.clock import activity_network, duration, run_clock
from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.timing import Deadlock
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.model.lowering import instructions
from tests.strategies import placed_problems, scheduled


def simulate(problem, programs, iterations, staggered):
    """End of each stage's update in each iteration if every server starts everything as soon as it can.

    Unlike the clock it knows phases only, repeats the whole job, and sweeps until nothing changes.
    """
    job = problem.job
    ready = dict.fromkeys(programs, 0)
    ends = []
    for _ in range(iterations):
        done = {}
        place = dict.fromkeys(programs, 0)
        moving = True
        while moving:
            moving = False
            for server, program in programs.items():
                while place[server] < len(program):
                    each = program[place[server]]
                    needs = [
                        (need.phase, need.stage, job.lag(each.stage, need.stage))
                        for phase in each.op.phases
                        for need in dependencies(phase, each.stage, job.depth)
                        if not (need.stage == each.stage and need.phase in each.op.phases)
                    ]
                    times = [done.get((phase, stage, each.home, each.micro_batch)) for phase, stage, _ in needs]
                    if None in times:
                        break
                    start = max([ready[server], *(time + lag for time, (_, _, lag) in zip(times, needs, strict=True))])
                    ready[server] = start + duration(job.stages[each.stage], each.op)
                    for phase in each.op.phases:
                        done[phase, each.stage, each.home, each.micro_batch] = ready[server]
                    place[server] += 1
                    moving = True
        assert all(place[server] == len(program) for server, program in programs.items())
        last = [max(ready[server] for server in programs if server.stage == stage) for stage in range(job.depth)]
        if not staggered:
            last = [max(last)] * job.depth
        update = [time + stage.update for time, stage in zip(last, job.stages, strict=True)]
        if not staggered:
            update = [max(update)] * job.depth
        ready = {server: update[server.stage] for server in programs}
        ends.append(update)
    return ends


@given(scheduled(pipelines=2, depth=3, micro_batches=3))
@settings(max_examples=60)
def test_the_period_is_the_steady_rate_of_endless_execution(case):
    problem, programs = case
    clock = run_clock(problem.job, problem.mode, programs)
    # A steady state repeats after as many iterations as there are stages on its critical cycle, and 6 is a multiple of
    # 1, 2 and 3.
    ends = simulate(problem, programs, 60, problem.staggered)
    steps = [[after - before for before, after in zip(ends[at], ends[at + 6], strict=True)] for at in range(41, 54)]
    assert all(step == steps[0] for step in steps)
    assert -(-max(steps[0]) // 6) == clock.period


@given(scheduled())
@settings(max_examples=60)
def test_the_makespan_is_the_end_of_a_first_iteration(case):
    problem, programs = case
    clock = run_clock(problem.job, problem.mode, programs)
    first = simulate(problem, programs, 1, staggered=True)[0]
    assert clock.makespan == max(end - stage.update for end, stage in zip(first, problem.job.stages, strict=True))


@given(scheduled())
@settings(max_examples=60)
def test_the_times_keep_every_rule_of_the_period(case):
    problem, programs = case
    job = problem.job
    clock = run_clock(job, problem.mode, programs)
    done = {}
    for server, program in clock.compute.items():
        before = None
        for each, start, end in zip(program, clock.start[server], clock.end[server], strict=True):
            assert end - start == duration(job.stages[each.stage], each.op)
            assert before is None or start >= before
            before = end
            for phase in each.op.phases:
                done[phase, each.stage, each.home, each.micro_batch] = (start, end)
        if program:
            assert clock.updates[server][0].start >= clock.end[server][-1]
            if problem.staggered:
                assert clock.updates[server][-1].end - clock.start[server][0] <= clock.period
    for (phase, stage, home, micro_batch), (start, _) in done.items():
        for need in dependencies(phase, stage, job.depth):
            ready, end = done[need.phase, need.stage, home, micro_batch]
            fused = need.stage == stage and ready == start
            assert fused or end + job.lag(stage, need.stage) <= start


@given(placed_problems())
@settings(max_examples=60)
def test_chunks_of_a_server_are_updated_one_by_one_behind_its_work_and_all_their_gradients(problem):
    clock = run_clock(problem.job, problem.mode, instructions(problem, schedule_chunks(problem, POLICIES[0])))
    last = dict.fromkeys(range(len(problem.job.stages)), 0)
    for server, program in clock.compute.items():
        for each, end in zip(program, clock.end[server], strict=True):
            last[each.stage] = max(last[each.stage], end)
    for server, updates in clock.updates.items():
        for update in updates:
            assert update.end - update.start == problem.job.stages[update.chunk].update
            assert update.start >= last[update.chunk]
            assert not clock.end[server] or update.start >= clock.end[server][-1]
        assert all(first.end <= second.start for first, second in pairwise(updates))
        if problem.staggered and clock.start[server]:
            assert updates[-1].end - clock.start[server][0] <= clock.period


def test_a_server_that_computes_nothing_updates_all_its_chunks():
    job = Job(2, 1, (Stage(1, 1, 1, 1, 3, 1, 0, 4),) * 4, (1,) * 3, placement=((0, 3), (1, 2)))
    programs = programs_of({"W0_0": "0F0.0 3F0.0", "W0_1": "1F0.0 2F0.0", "W1_0": ""})
    clock = run_clock(job, Mode(), programs)
    assert {update.chunk for update in clock.updates[Server(1, 0)]} == {0, 3}


def test_a_period_worked_out_by_hand():
    job = paper_job(pipelines=1, stages=2, micro_batches=2)
    rows = {"W0_0": "0F0.0 0F0.1 0I0.0 0W0.0 0I0.1 0W0.1", "W0_1": "1F0.0 1I0.0 1W0.0 1F0.1 1I0.1 1W0.1"}
    programs = programs_of(rows)
    # Stage 0 waits for the gradients of stage 1 until 3 and 6, ends at 8 and steps until 11; the window of stage 1 runs
    # from 1 to 10.
    clock = run_clock(job, Mode(), programs)
    assert (clock.period, clock.makespan) == (11, 8)
    assert [clock.updates[Server(0, stage)][0].start for stage in (0, 1)] == [8, 7]
    assert run_clock(job, Mode(optimizer="global"), programs).period == 11
    # Where stage 1 waits for its last forward, its own window is the shorter one still.
    assert clock.start[Server(0, 1)] == [1, 2, 3, 4, 5, 6]
    shortest = Job(1, 1, (Stage(1, 0, 0, 0, 0, held=1, released_at_input_gradient=0, limit=1),), ())
    assert run_clock(shortest, Mode(), programs_of({"W0_0": "0F0.0 0I0.0 0W0.0"})).period == 1


def test_a_cycle_of_waits_is_a_deadlock():
    job = paper_job(pipelines=2, stages=2, micro_batches=1)
    rows = {"W0_0": "0F0.0 0B0.0", "W1_0": "0F1.0 0B1.0", "W0_1": "1F1.0 1B1.0 1F0.0 1B0.0"}
    assert run_clock(job, Mode("fused"), programs_of(rows)).period > 0
    with pytest.raises(Deadlock):
        run_clock(job, Mode("fused"), programs_of(rows | {"W0_0": "0B0.0 0F0.0"}))


def test_a_network_has_a_node_per_compute_instruction():
    job = paper_job(pipelines=1, stages=2, micro_batches=1)
    programs = {Server(0, 0): [Instruction(Op.F, 0, 0, 0)], Server(0, 1): [Instruction(Op.F, 1, 0, 0)]}
    assert list(activity_network(job, programs).need) == [-1, 0]
