"""Chunks that are reduced while their servers compute others: when that is, and what is wrong with a plan of it."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings

from harness.examples import QUICK
from recycle.holding import holders
from recycle.job import Job, Server, Stage
from recycle.placement import parse_placement
from recycle.plan.checker import check_plan
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.make import make_plan
from recycle.planner.model.lowering import instructions
from recycle.record.planned import timeline
from tests.plan.test_checker import edit, only
from tests.strategies import placed_problems


def v_plan(overlap, reduction=3):
    stage = Stage(1, 1, 1, 1, reduction, 1, 0, 4)
    job = Job(2, 3, (stage,) * 4, (1,) * 3, placement=((0, 3), (1, 2)), overlap_reduction=overlap or msgspec.UNSET)
    return make_plan(job, (), Mode(), QUICK)


OVERLAPPED = v_plan(True)


@given(placed_problems())
@settings(max_examples=60)
def test_each_chunk_is_reduced_when_its_gradients_are_there_and_no_server_takes_part_in_two_at_once(problem):
    job = msgspec.structs.replace(problem.job, overlap_reduction=True)
    clock = run_clock(job, problem.mode, instructions(problem, schedule_chunks(problem, POLICIES[0])))
    beside = not job.standard and problem.staggered
    assert sorted(clock.reductions) == (list(range(len(job.stages))) if beside else [])
    last = dict.fromkeys(range(len(job.stages)), 0)
    for server, program in clock.compute.items():
        for each, end in zip(program, clock.end[server], strict=True):
            last[each.stage] = max(last[each.stage], end)
    peers = [[each for each in servers.values() if each in clock.compute] for servers in holders(job)]
    for chunk, reduced in clock.reductions.items():
        assert reduced.end - reduced.start == job.stages[chunk].reduction
        others = [other for at, other in clock.reductions.items() if at != chunk and set(peers[at]) & set(peers[chunk])]
        # As soon as it can, and no sooner.
        assert reduced.start in (last[chunk], *(other.end for other in others))
        assert reduced.start >= last[chunk]
        assert all(other.end <= reduced.start or other.start >= reduced.end for other in others)
    for server, updates in clock.updates.items():
        for update in updates:
            if beside:
                assert update.end - update.start == job.stages[update.chunk].optimizer
                assert update.start >= clock.reductions[update.chunk].end
            assert not clock.end[server] or update.start >= clock.end[server][-1]
        assert all(first.end <= second.start for first, second in pairwise(updates))
        if problem.staggered and clock.start[server]:
            assert updates[-1].end - clock.start[server][0] <= clock.period


def test_a_plan_is_never_longer_for_it_and_says_where_reductions_stand():
    behind = v_plan(False)
    assert OVERLAPPED.period < behind.period
    assert OVERLAPPED.bound < behind.bound
    assert not check_plan(OVERLAPPED)
    for server, program in OVERLAPPED.programs.items():
        assert [each.op for each in program[-2:]] == [Op.STEP] * 2
        computed = {each.stage: index for index, each in enumerate(program) if each.op.is_compute}
        assert all(index > computed[each.stage] for index, each in enumerate(program) if each.op is Op.REDUCE), server
    early = [
        server
        for server, program in OVERLAPPED.programs.items()
        if any(each.op is Op.REDUCE and later.op.is_compute for each, later in pairwise(program))
    ]
    assert early, "something is computed after a reduction has begun"


def test_a_time_line_has_reductions_among_what_servers_send():
    spans = [each for each in timeline(OVERLAPPED).spans if each.instruction.op.is_update]
    assert {(each.instruction.op, each.lane) for each in spans} == {(Op.REDUCE, "communication"), (Op.STEP, "compute")}
    assert all(each.end - each.start == 3 for each in spans if each.instruction.op is Op.REDUCE)
    for server, program in OVERLAPPED.programs.items():
        mine = [each for each in spans if each.server == server]
        assert {each.instruction: each.index for each in mine} == {
            each: index for index, each in enumerate(program) if each.op.is_update
        }


def reduce_first(rows):
    row = next(each for each in rows if each.endswith("REDUCE"))
    rows.remove(row)
    rows.insert(0, row)


def step_first(rows):
    rows.insert(0, rows.pop())


def other_way_round(op):
    def change(rows):
        one, two = (place for place, row in enumerate(rows) if row.endswith(op))
        rows[one], rows[two] = rows[two], rows[one]

    return change


def behind_all(rows):
    moved = [each for each in rows if each.endswith("REDUCE")]
    rows[:] = [each for each in rows if each not in moved]
    rows[-2:-2] = moved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (reduce_first, "is reduced"),
        (step_first, "has to do besides steps"),
        (lambda rows: rows.remove("3REDUCE"), "must reduce and step once for each of its chunks"),
        (lambda rows: rows.remove("0STEP"), "must reduce and step once for each of its chunks"),
        (lambda rows: rows.append("0STEP"), "must reduce and step once for each of its chunks"),
    ],
)
def test_updates_come_once_behind_what_they_need(change, message):
    only(edit(OVERLAPPED, "W0_0", change), "updates", message)


def test_servers_reduce_and_step_in_the_order_of_what_is_ready():
    only(edit(OVERLAPPED, "W0_0", other_way_round("STEP")), "update order", "steps chunk")
    # A reduction may stand further behind, as long as its peers can go on.
    assert not check_plan(edit(OVERLAPPED, "W0_0", behind_all))
    crossed = OVERLAPPED
    for name in ("W0_0", "W1_0"):
        crossed = edit(crossed, name, behind_all)
    one = edit(crossed, "W0_0", other_way_round("REDUCE"))
    assert {each.rule for each in check_plan(one)} == {"deadlock"}
    only(edit(one, "W1_0", other_way_round("REDUCE")), "update order", "reduces chunk")


def test_with_one_chunk_per_server_and_behind_a_barrier_nothing_changes():
    for job, mode in (
        (Job(2, 2, (Stage(1, 1, 1, 1, 3, 1, 0, 4),) * 2, (0,)), Mode()),
        (OVERLAPPED.job, Mode(optimizer="global")),
    ):
        overlapped = make_plan(msgspec.structs.replace(job, overlap_reduction=True), (), mode, QUICK)
        behind = make_plan(msgspec.structs.replace(job, overlap_reduction=msgspec.UNSET), (), mode, QUICK)
        assert overlapped.programs == behind.programs
        assert (overlapped.period, overlapped.bound) == (behind.period, behind.bound)
        assert not check_plan(overlapped)


def test_no_reduction_is_left_out_where_a_server_computes_nothing():
    job = msgspec.structs.replace(OVERLAPPED.job, micro_batches=1)
    programs = {Server(0, 0): [Instruction(Op.F, 0, 0, 0), Instruction(Op.F, 3, 0, 0)], Server(1, 0): []}
    programs[Server(0, 1)] = [Instruction(Op.F, 1, 0, 0), Instruction(Op.F, 2, 0, 0)]
    clock = run_clock(job, Mode(), programs)
    assert {update.chunk for update in clock.updates[Server(1, 0)]} == {0, 3}


def test_a_stage_that_is_cut_into_chunks_hides_their_reductions_behind_its_own_work():
    def period(chunks):
        cost = 4 // chunks
        stage = Stage(cost, cost, cost, cost, 2 * cost, cost, 0, 24)
        cut = parse_placement(f"consecutive:{chunks}", 3)
        job = Job(2, 6, (stage,) * 3 * chunks, (0,) * (3 * chunks - 1), placement=cut, overlap_reduction=True)
        return make_plan(job, (), Mode(), QUICK).period

    assert period(4) < period(2) < period(1) == 6 * 12 + 8 + 4
