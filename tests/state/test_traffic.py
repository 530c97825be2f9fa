"""Copies in bubbles and idle links: nothing else waits for them, and what finds no room is said."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.planned import timeline
from recycle.state.traffic import Calendar, Traffic, check_copies, plan_copies

MODES = [Mode(), Mode(optimizer="global")]


def ring(plan, copies=2):
    """Each server's part goes to the next servers of its stage's ring."""
    servers = sorted(plan.programs)
    return {
        server: [servers[(place + step) % len(servers)] for step in range(1, copies)]
        for place, server in enumerate(servers)
    }


def planned(dead=(), latency=0, mode=MODES[0]):
    job = paper_job(pipelines=2, stages=3, micro_batches=4)
    return make_plan(msgspec.structs.replace(job, latency=(latency,) * 2), dead, mode, QUICK, "lowered")


PLANS = [planned(), planned((Server(1, 1),), latency=1), planned(mode=MODES[1], latency=2)]


@settings(max_examples=40)
@given(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_every_plan_of_copies_is_right(which, pieces, snapshot, copy, copies):
    plan = PLANS[which]
    traffic = Traffic(pieces, snapshot, copy, ring(plan, copies))
    found = plan_copies(plan, traffic)
    assert check_copies(plan, traffic, found) == []
    # No server waits longer than if everything were copied while nobody trains.
    assert found.pause <= pieces * len(plan.programs) * (snapshot + copies * copy) + plan.period
    assert bool(found.pause) >= bool(found.paused)


def gemini_rest(spans, size, piece, alpha):
    """How much of a copy Algorithm 2 leaves for after the idle spans, with one buffer and a link of one byte a slot."""
    for span in spans:
        while span > alpha and size:
            chunk = min(size, piece, span - alpha)
            size -= chunk
            span -= chunk + alpha
    return size


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 20),
)
def test_on_one_link_no_less_fits_than_by_the_algorithm_of_gemini(rhythm, piece, pieces):
    used, time = [], 0
    for busy, idle in rhythm:
        used.append((time, time + busy))
        time += busy + idle
    calendar, placed = Calendar(time, {"link": used}), 0
    for _ in range(pieces):
        start = calendar.find(["link"], 0, piece, time)
        if start is None:
            break
        calendar.take(["link"], start, piece)
        placed += 1
    whole = [idle // piece * piece for _, idle in rhythm]
    assert (pieces - placed) * piece == gemini_rest(whole, pieces * piece, piece, 0)


def test_what_fits_into_bubbles_costs_nothing_and_what_does_not_is_said():
    plan = planned(mode=MODES[1])
    little = plan_copies(plan, Traffic(1, 1, 1, ring(plan)))
    assert (little.paused, little.pause) == ((), 0)
    much = Traffic(3 * plan.period, 1, 1, ring(plan))
    found = plan_copies(plan, much)
    assert found.pause > plan.period
    assert check_copies(plan, much, found) == []


@pytest.mark.parametrize("latency", [0, 2])
def test_the_checker_finds_what_is_wrong(latency):
    plan = planned(latency=latency)
    traffic = Traffic(2, 1, 1, ring(plan))
    good = plan_copies(plan, traffic)
    first = good.moves[0]
    last = next(each for each in good.moves if each.holder is not None)
    busy = next(
        each
        for each in timeline(plan).spans
        if each.server == first.server and each.lane == "compute" and each.start + plan.period > first.end
    )

    def said(old, new):
        moves = tuple(new if each == old else each for each in good.moves)
        return " ".join(check_copies(plan, traffic, good._replace(moves=moves)))

    shift = int(busy.start) + plan.period
    assert "time of" in said(first, first._replace(start=shift, end=shift + 1))
    assert "is not while the version is there" in said(first, first._replace(start=first.start - 2 * plan.period))
    assert "leaves before it is in host memory" in said(last, last._replace(start=last.start - 9, end=last.end - 9))
    assert "not every piece is copied" in said(last, last._replace(holder=last.server))
    assert "does not take as long" in said(last, last._replace(end=last.end + 1))
    short = good._replace(paused=(first,), moves=good.moves[1:])
    assert "is not in the pause" in " ".join(check_copies(plan, traffic, short))
