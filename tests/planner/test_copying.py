"""Copies in bubbles and on idle links: nothing waits for them, or the plan says for how long."""

from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.errors import JobError
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Copies
from recycle.planner.copying import Calendar, add_copies
from recycle.planner.make import make_plan
from recycle.record.planned import timeline
from tests.plan.test_checker import assemble
from tests.strategies import scheduled

MODES = [Mode(), Mode(optimizer="global")]


def planned(dead=(), latency=0, mode=MODES[0]):
    job = paper_job(pipelines=2, stages=3, micro_batches=4)
    return make_plan(msgspec.structs.replace(job, latency=(latency,) * 2), dead, mode, QUICK, "lowered")


PLANS = [planned(), planned((Server(1, 1),), latency=1), planned(mode=MODES[1], latency=2)]
WITH_COPIES = add_copies(PLANS[1], Copies(2, 1, 1, holders=1))


def overlapping(spans):
    ordered = sorted((span.start, span.end) for span in spans if span.end > span.start)
    return [pair for pair in pairwise(ordered) if pair[1][0] < pair[0][1]]


def used_twice(plan):
    """What is used for two things at a time in some iterations, by their times alone."""
    lanes, pieces, results = defaultdict(list), defaultdict(list), defaultdict(list)
    for span in timeline(plan, 4).spans:
        if span.lane == "compute":
            lanes[span.server].append(span)
            continue
        for way in (("out of", span.server), ("into", span.instruction.peer)):
            (pieces if span.instruction.op is Op.SEND_S else results)[way].append(span)
    found = [server for server, spans in lanes.items() if overlapping(spans)]
    found += [way for way, spans in pieces.items() if overlapping(spans)]
    # Results may be under way together, and with pieces not.
    for way, spans in pieces.items():
        found += [way for each in spans for other in results[way] if overlapping([each, other])]
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
def test_every_plan_with_copies_is_legal_and_costs_what_it_says(which, pieces, snapshot, copy, holders):
    plan = PLANS[which]
    found = add_copies(plan, Copies(pieces, snapshot, copy, holders))
    assert check_plan(found) == ()
    assert used_twice(found) == []
    assert found.copies.delay == found.period - plan.period
    # No server waits longer than if everything were copied while nobody trains.
    assert 0 <= found.copies.delay <= pieces * len(plan.programs) * (snapshot + holders * copy)
    without = {
        server: tuple(each for each in program if not each.op.is_copy) for server, program in found.programs.items()
    }
    assert without == plan.programs
    assert decode_plan(encode_plan(found), "here") == found


@settings(max_examples=50, deadline=None)
@given(scheduled(), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
def test_whatever_the_order_nothing_is_used_for_two_things(case, pieces, snapshot, copy, holders):
    plan = assemble(*case)
    assume(len(plan.programs) > holders)
    found = add_copies(plan, Copies(pieces, snapshot, copy, holders))
    assert check_plan(found) == ()
    assert used_twice(found) == []
    assert found.copies.delay >= 0
    assert found.copies.delay == 0 or snapshot or copy


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2), st.integers(1, 3))
def test_a_piece_is_copied_when_its_version_is_there_and_sent_when_it_is_copied(which, pieces):
    plan = add_copies(PLANS[which], Copies(pieces, 1, 1, 1))
    spans = timeline(plan, 3).spans
    for server in plan.programs:
        mine = [span for span in spans if span.server == server]
        snaps = {(each.iteration, each.instruction.piece): each for each in mine if each.instruction.op is Op.SNAP}
        steps = {each.iteration: each.end for each in mine if each.instruction.op is Op.STEP}
        reduces = {each.iteration: each.start for each in mine if each.instruction.op is Op.REDUCE}
        assert len(snaps) == 3 * pieces
        for (iteration, _), each in snaps.items():
            assert steps.get(iteration - 1, 0) <= each.start
            assert each.end <= reduces[iteration]
        for each in mine:
            if each.instruction.op is Op.SEND_S:
                assert snaps[each.iteration, each.instruction.piece].end <= each.start
                assert each.end <= reduces[each.iteration]


def test_what_fits_into_bubbles_costs_nothing_and_what_does_not_is_said():
    plan = planned(mode=MODES[1])
    little = add_copies(plan, Copies(1, 1, 1, 1))
    assert (little.copies.delay, little.period) == (0, plan.period)
    much = add_copies(plan, Copies(3 * plan.period, 1, 1, 1))
    assert much.copies.delay > plan.period
    assert much.provenance.status == "bounded"


def test_copies_that_take_no_time_leave_all_times_as_they_are():
    for plan in PLANS:
        found = add_copies(plan, Copies(3, 0, 0, 2))
        kept = [span for span in timeline(found).spans if not span.instruction.op.is_copy]
        assert found.copies.delay == 0
        assert {(each.server, each.instruction, each.start) for each in kept} == {
            (each.server, each.instruction, each.start) for each in timeline(plan).spans
        }


def test_servers_of_several_chunks_copy_nothing():
    job = paper_job(pipelines=2, stages=4, micro_batches=4)
    job = msgspec.structs.replace(job, placement=((0, 3), (1, 2)))
    with pytest.raises(JobError, match="a plan with copies takes one chunk per server"):
        add_copies(make_plan(job, (), MODES[0], QUICK), Copies(1, 1, 1, 1))


def edited(server, change):
    """The plan with copies, with one list changed."""
    server = Server.parse(server)
    rows = [str(each) for each in WITH_COPIES.programs[server]]
    change(rows)
    programs = {**WITH_COPIES.programs, server: tuple(Instruction.parse(row) for row in rows)}
    return msgspec.structs.replace(WITH_COPIES, programs=programs)


def replaced(old, new):
    def change(rows):
        rows[rows.index(old)] = new

    return change


def moved(text, place):
    def change(rows):
        rows.remove(text)
        rows.insert(rows.index(place), text)

    return change


def message(plan):
    first = check_plan(plan)[0]
    return f"{first.rule}: {first.message}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.remove("0SNAP1"), "copies: piece 1 of W0_0 is never copied to host memory"),
        (lambda rows: rows.insert(0, "0SNAP1"), "copies: piece 1 of W0_0 is 2 times copied to host memory"),
        (replaced("0SNAP1", "0SNAP2"), "instructions: 0SNAP2: the pieces of each server's part are 0 to 1"),
        (replaced("0SNAP1", "1SNAP1"), "instructions: 1SNAP1 is of stage 1, and W0_0 holds stage 0"),
        (replaced("0SEND_S1>W0_1", "0SEND_S1>W1_1"), "instructions: 0SEND_S1>W1_1: W1_1 is no live server"),
        (replaced("0SEND_S1>W0_1", "0SEND_S1>W0_0"), "instructions: 0SEND_S1>W0_0 goes nowhere"),
        (replaced("0SEND_S1>W0_1", "0SEND_S1>W0_2"), "copies: W0_0 sends its part to 2 other servers, and the plan"),
        (replaced("0SEND_S1>W0_1", "0SEND_S0>W0_1"), "copies: piece 0 of W0_0 is 2 times sent to W0_1"),
        (lambda rows: rows.remove("0RECV_S1<W0_1"), "copies: W0_0 lacks the receive of piece 1 of W0_1"),
        (lambda rows: rows.insert(0, "0RECV_S0<W0_1"), "copies: 0RECV_S0<W0_1 has no partner"),
        (moved("0SEND_S1>W0_1", "0SNAP0"), "copies: 0SEND_S1>W0_1 leaves before its piece is in host memory"),
        (lambda rows: rows.append("0SNAP1") or rows.remove("0SNAP1"), "updates: 0SNAP1 comes after W0_0 reduces"),
        (moved("0SEND_S0>W0_1", "0REDUCE"), "pair order: "),
    ],
)
def test_the_checker_finds_what_is_wrong(change, said):
    assert message(edited("W0_0", change)).startswith(said)


def test_the_checker_counts_what_copies_cost():
    plan = add_copies(PLANS[0], Copies(1, 1, 1, 0))
    assert plan.copies.delay == 0
    server = Server(0, 2)
    rows = [each for each in plan.programs[server] if each.op is not Op.SNAP]
    place = next(index for index, each in enumerate(rows) if each.op in (Op.B, Op.I))
    # Between two instructions of the busiest server, everybody waits for it.
    rows.insert(place, Instruction(Op.SNAP, 2, piece=0))
    slow = msgspec.structs.replace(plan, programs={**plan.programs, server: tuple(rows)})
    said = [f"{each.rule}: {each.message}" for each in check_plan(slow)]
    assert f"figures: the plan says period {plan.period}, and its instructions take {plan.period + 1}" in said
    assert "copies: the plan says that copies make its period longer by 0, and they do by 1" in said
    plain = msgspec.structs.replace(slow, copies=None)
    assert message(plain) == "instructions: 0SNAP0 has no place in a plan without copies"


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
    link = "out", Server(0, 0)
    calendar, placed = Calendar(time, {link: used}), 0
    for _ in range(pieces):
        start = calendar.find([link], 0, piece, time)
        if start is None:
            break
        calendar.take([link], start, piece)
        placed += 1
    whole = [idle // piece * piece for _, idle in rhythm]
    assert (pieces - placed) * piece == gemini_rest(whole, pieces * piece, piece, 0)
