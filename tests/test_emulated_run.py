"""Whole plans with real processes and messages: they end, in order, with nothing left. No wall-clock assertions."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from harness.emulated_run import emulate
from harness.examples import QUICK, overlapped, placed_job, uneven_job
from recycle.job import Server
from recycle.plan.document import load_plan
from recycle.plan.instruction import Op
from recycle.plan.memory import peak_memory
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan

SCHEDULES = Path(__file__).resolve().parents[1] / "schedules"


def paper_plan(name):
    return load_plan(SCHEDULES / f"{name}.json")


def placed_plan(form, *dead):
    return make_plan(placed_job(form), [Server.parse(each) for each in dead], Mode(), QUICK)


def overlapped_plan(form, *dead):
    return make_plan(overlapped(placed_job(form)), [Server.parse(each) for each in dead], Mode(), QUICK)


def uneven_plan(slow, *dead):
    return make_plan(uneven_job(slow), [Server.parse(each) for each in dead], Mode(), QUICK)


PLANS = {
    **{name: partial(paper_plan, name) for name in ("1-fault-free", "2-fused", "3-split", "4-staggered")},
    "v-shaped": partial(placed_plan, "v-shaped"),
    "v-shaped with a death": partial(placed_plan, "v-shaped", "W1_0"),
    "interleaved with a death, reduced beside": partial(overlapped_plan, "interleaved:2", "W0_1"),
    "unequal depth with a slow server": partial(uneven_plan, 50),
    "unequal depth with a death": partial(uneven_plan, 100, "W1_1"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_run_to_the_end_in_order(name):
    plan = PLANS[name]()
    iterations = 2
    run = emulate(plan, slot=0.0005, iterations=iterations)
    for server, program in plan.programs.items():
        spans = [span for span in run.timeline.spans if span.server == server]
        computed = [span.instruction for span in spans if not span.instruction.op.is_receive]
        assert computed == [each for each in program if not each.op.is_receive] * iterations
        received = {span.instruction for span in spans if span.instruction.op.is_receive}
        assert received == {each for each in program if each.op.is_receive}
        starts = {(span.iteration, span.instruction): span for span in spans}
        for (iteration, instruction), span in starts.items():
            if instruction.op is Op.W:
                key = (iteration, Op.I, instruction.stage, instruction.home, instruction.micro_batch)
                inputs = [
                    other
                    for (turn, each), other in starts.items()
                    if (turn, each.op, each.stage, each.home, each.micro_batch) == key
                ]
                assert len(inputs) == 1
                assert inputs[0].end <= span.start
        assert all(first.end <= second.start for first, second in pairwise(spans))
    for server, report in zip(sorted(plan.programs), run.reports, strict=True):
        assert report.steps == iterations
        assert report.peak_memory == peak_memory(plan.job, server, plan.programs[server])


@pytest.mark.parametrize("name", ["4-staggered", "v-shaped with a death", "unequal depth with a slow server"])
def test_across_servers_no_instruction_starts_before_what_it_needs(name):
    plan = PLANS[name]()
    chunks, units = len(plan.job.stages), sum(plan.job.loads)
    run = emulate(plan, slot=0.0005, iterations=2)
    end = {}
    start = {}
    for span in run.timeline.spans:
        for phase in span.instruction.op.phases:
            key = (span.iteration, phase, span.instruction.stage, span.instruction.home, span.instruction.micro_batch)
            start[key], end[key] = span.start, span.end
    assert len(start) == 2 * 3 * chunks * units
    for (turn, phase, stage, home, micro_batch), time in start.items():
        if phase is Op.F and stage > 0:
            assert end[turn, Op.F, stage - 1, home, micro_batch] <= time
        if phase is Op.I and stage < chunks - 1:
            assert end[turn, Op.I, stage + 1, home, micro_batch] <= time
