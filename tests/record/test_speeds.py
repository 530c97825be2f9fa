import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import QUICK, uneven_job
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.planned import timeline
from recycle.record.speeds import LEAST, measured_speeds, slow_servers


def run_of(slow, iterations=LEAST):
    return timeline(make_plan(uneven_job(slow), (), Mode(), QUICK), iterations)


def held_up(line, server, iteration, factor):
    """All that a server executed in one iteration took longer."""
    spans = tuple(
        msgspec.structs.replace(each, end=each.start + factor * (each.end - each.start))
        if (each.server, each.iteration) == (server, iteration)
        else each
        for each in line.spans
    )
    return msgspec.structs.replace(line, spans=spans)


@pytest.mark.parametrize("slow", [50, 25])
def test_a_slow_server_is_told_from_its_peers(slow):
    (found,) = slow_servers(run_of(slow))
    assert (found.server, found.share) == (Server(1, 1), slow / 100)
    assert str(found) == f"W1_1 computes at {slow}% of its peers' speed, in the median of 5 iterations"


def test_servers_that_keep_step_are_not_called_slow():
    line = run_of(100)
    assert [each.share for each in measured_speeds(line)] == [1.0] * 5
    assert slow_servers(line) == ()


@given(st.integers(0, 2**32), st.sampled_from(uneven_job().servers()), st.integers(0, LEAST - 1))
def test_one_slow_iteration_and_jitter_make_no_slow_server(seed, server, iteration):
    draw = random.Random(seed)
    line = run_of(100)
    spans = tuple(
        msgspec.structs.replace(each, end=each.end + draw.uniform(0, 0.02) * (each.end - each.start))
        for each in line.spans
    )
    line = held_up(msgspec.structs.replace(line, spans=spans), server, iteration, 3.0)
    assert slow_servers(line) == ()


def test_too_few_iterations_say_nothing():
    assert slow_servers(run_of(50, LEAST - 1)) == ()
