import msgspec

from recycle.job import Server
from recycle.record.planned import timeline
from recycle.view.compare import compare, describe
from tests.view.samples import measured


def test_a_time_line_does_not_differ_from_itself(worked):
    _, plan = worked
    line = timeline(plan, 2)
    comparison = compare(line, line)
    assert not comparison.changes
    assert comparison.missing == 0
    assert describe(comparison, line, line) == ["instructions: the same, in the same order on the same servers"]


def test_a_run_that_follows_its_plan_differs_in_pace_alone(staggered):
    line, run = timeline(staggered, 2), measured(staggered)
    comparison = compare(line, run)
    assert not comparison.changes
    assert comparison.pace == 11.25
    assert describe(comparison, line, run)[0] == "pace: one slot of the first is 11.25 ms of the second"


def test_an_exchange_of_neighbours_is_a_change_of_order(staggered):
    server = Server(0, 0)
    program = list(staggered.programs[server])
    places = [place for place, each in enumerate(program) if each.op.is_compute and each.op.value == "F"][1:3]
    program[places[0]], program[places[1]] = program[places[1]], program[places[0]]
    other = msgspec.structs.replace(staggered, programs={**staggered.programs, server: tuple(program)})
    comparison = compare(timeline(staggered), timeline(other))
    assert comparison.count("reordered") >= 2
    assert comparison.count("moved") == comparison.count("new") == 0
    assert all(place[0] == server for place in comparison.changes)


def test_other_ops_are_new_and_missing_and_other_servers_are_moves(fused, staggered):
    comparison = compare(timeline(fused), timeline(staggered))
    assert comparison.count("new") > 0
    assert comparison.missing > 0
    line = timeline(staggered)
    moved = msgspec.structs.replace(
        line,
        spans=tuple(
            msgspec.structs.replace(span, server=Server(1 - span.server.pipeline, span.server.stage))
            if span.server.pipeline < 2 and span.server.stage == 0
            else span
            for span in line.spans
        ),
    )
    assert compare(line, moved).count("moved") > 0
