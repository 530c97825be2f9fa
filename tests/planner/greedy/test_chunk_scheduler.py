"""Plans for servers of several chunks, judged from their rows alone."""

import csv
import io
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.holding import with_own_layout
from recycle.job import Job, Server, Stage
from recycle.placement import parse_placement
from recycle.plan.checker import check_plan
from recycle.plan.export import export_csv
from recycle.plan.mode import Mode
from recycle.plan.plan import Provenance
from recycle.planner.assemble import assemble
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.model.bounds import lower_bound, period
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem
from tests.strategies import placed_problems

ROUTINGS = {"home": lambda home, live: {home} if home in live else live, "free": lambda home, live: live}


def made(problem, programs, form="compute"):
    provenance = Provenance("test", 0, "none", "work", "bounded")
    bound = period(problem, lower_bound(problem).value)
    return assemble(problem, instructions(problem, programs), form, bound, provenance)


def judge(plan):
    """The value of a plan by the definition of the problem: it knows the rows, the costs and the placement."""
    job = plan.job
    place = {chunk: place for place, chunks in enumerate(job.chunks) for chunk in chunks}
    live = {
        place: {server.pipeline for server in job.servers() if server.stage == place and server not in plan.dead}
        for place in range(job.depth)
    }
    rows = [
        (server, int(chunk), phase, (int(home), int(number)), int(start), int(end))
        for server, chunk, op, home, number, start, end in list(csv.reader(io.StringIO(export_csv(plan))))[1:]
        if op != "REDUCE"
        for phase in {"B": "IW"}.get(op, op)
    ]
    where, begin, stop = {}, {}, {}
    for server, chunk, phase, unit, start, end in rows:
        assert (chunk, phase, unit) not in where
        where[chunk, phase, unit] = server
        begin[chunk, phase, unit], stop[chunk, phase, unit] = start, end
    units = [(home, number) for home in range(job.pipelines) for number in range(job.micro_batches)]
    for unit in units:
        for chunk, stage in enumerate(job.stages):
            names = {where[chunk, phase, unit] for phase in "FIW"}
            assert len(names) == 1
            pipeline, at = map(int, names.pop()[1:].split("_"))
            assert at == place[chunk]
            assert pipeline in ROUTINGS[plan.mode.routing](unit[0], live[at])
            fused = (
                begin[chunk, "I", unit] == begin[chunk, "W", unit] and stop[chunk, "I", unit] == stop[chunk, "W", unit]
            )
            assert fused or stop[chunk, "I", unit] <= begin[chunk, "W", unit]
            assert stop[chunk, "F", unit] <= begin[chunk, "I", unit]
            assert stop[chunk, "F", unit] - begin[chunk, "F", unit] == stage.forward
            if chunk:
                far = where[chunk, "F", unit] != where[chunk - 1, "F", unit]
                hop = job.latency[chunk - 1] if far else 0
                assert stop[chunk - 1, "F", unit] + hop <= begin[chunk, "F", unit]
                assert stop[chunk, "I", unit] + hop <= begin[chunk - 1, "I", unit]
    ready = {chunk: max(stop[chunk, "W", unit] for unit in units) for chunk in place}
    cost = {chunk: job.stages[chunk].update for chunk in place}
    if job.overlap_reduction is True and not job.standard and plan.mode.optimizer == "staggered":
        # Each server takes part in one reduction at a time, and is free to compute meanwhile.
        links = defaultdict(int)
        for _, chunk in sorted((time, chunk) for chunk, time in ready.items()):
            peers = [(pipeline, place[chunk]) for pipeline in live[place[chunk]]]
            ready[chunk] = max([ready[chunk], *(links[peer] for peer in peers)]) + job.stages[chunk].reduction
            links.update(dict.fromkeys(peers, ready[chunk]))
            cost[chunk] = job.stages[chunk].optimizer
    value = 0
    for server in map(str, plan.programs):
        mine = [row for row in rows if row[0] == server]
        spans = sorted({(row[4], row[5]) for row in mine})
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        chunks = job.chunks[int(server.partition("_")[2])]
        changes = defaultdict(int)
        for _, chunk, phase, _, start, end in mine:
            stage = job.stages[chunk]
            rest = stage.held - stage.released_at_input_gradient
            time, amount = {"F": (start, stage.held), "I": (end, rest - stage.held), "W": (end, -rest)}[phase]
            changes[time, amount > 0] += amount
        level = 0
        for _, amount in sorted(changes.items()):
            level += amount
            # A release at an instant makes room for what starts then, unless a task takes no time.
            assert level <= job.limit(int(server.partition("_")[2])) or any(row[4] == row[5] for row in mine)
        updates = sorted((ready[chunk], cost[chunk]) for chunk in chunks)
        time = max((row[5] for row in mine), default=0)
        for summed, update in updates:
            time = max(time, summed) + update
        first = min((row[4] for row in mine), default=time - sum(update for _, update in updates))
        value = max(value, time - first)
    if plan.mode.optimizer == "global":
        longest = max(sum(job.stages[chunk].update for chunk in chunks) for chunks in job.chunks)
        return max(stop.values()) + longest
    return value


@given(placed_problems(), st.sampled_from(POLICIES))
@settings(deadline=None, max_examples=80)
def test_every_plan_is_legal_and_worth_what_it_says(problem, policy):
    plan = made(problem, schedule_chunks(problem, policy))
    assert not check_plan(plan)
    assert judge(plan) == plan.period
    lowered = made(problem, schedule_chunks(problem, policy), "lowered")
    assert not check_plan(lowered)
    assert lowered.period <= plan.period


@given(placed_problems(pipelines=1), st.sampled_from(POLICIES))
@settings(deadline=None, max_examples=40)
def test_a_plan_of_one_pipeline_is_never_below_the_bound(problem, policy):
    assert made(problem, schedule_chunks(problem, policy)).period >= period(problem, lower_bound(problem).value)


@pytest.mark.parametrize("form", ["v-shaped", "interleaved:2", "interleaved:3"])
def test_memory_for_one_micro_batch_is_enough(form):
    placement = parse_placement(form, 3)
    count = sum(map(len, placement))
    stage = Stage(1, 1, 1, 0, 0, 1, 0, count // 3)
    problem = make_problem(Job(1, 4, (stage,) * count, (1,) * (count - 1), placement=placement), (), Mode())
    for policy in POLICIES:
        assert not check_plan(made(problem, schedule_chunks(problem, policy)))


def test_who_may_be_ahead_locks_nobody_in_around_dead_servers():
    job = with_own_layout(placed_job("consecutive:2", pipelines=3, limit=3))
    problem = make_problem(job, (Server(1, 1),), Mode())
    for policy in POLICIES:
        assert not check_plan(made(problem, schedule_chunks(problem, policy)))


def test_a_v_loses_nothing_where_one_chunk_per_server_idles():
    placement = parse_placement("v-shaped", 4)
    stage = Stage(1, 1, 1, 0, 0, 1, 0, 8)
    problem = make_problem(Job(1, 8, (stage,) * 8, (0,) * 7, placement=placement), (), Mode())
    values = [made(problem, schedule_chunks(problem, policy)).period for policy in POLICIES]
    # Six tasks of each of eight micro-batches on each server, and not one slot more.
    assert min(values) == 48
    alone = Stage(2, 2, 2, 0, 0, 2, 0, 8)
    standard = make_problem(Job(1, 8, (alone,) * 4, (0,) * 3), (), Mode())
    assert lower_bound(standard).value > 48


def test_a_plan_is_the_same_whoever_makes_it():
    placement = parse_placement("interleaved:2", 3)
    stage = Stage(2, 3, 1, 1, 0, 1, 0, 4)
    job = Job(3, 4, (stage,) * 6, (1,) * 5, placement=placement)
    problem = make_problem(job, (job.servers()[1],), Mode())
    again = msgspec.structs.replace(problem)
    assert schedule_chunks(problem, POLICIES[0]) == schedule_chunks(again, POLICIES[0])
