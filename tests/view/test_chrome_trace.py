import json
from collections import Counter, defaultdict
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.timeline import Span, Timeline
from recycle.view.chart import make_chart
from recycle.view.chrome_trace import COMPUTE, encode
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import Subject, load_subject, subject_of
from recycle.wording import microseconds
from tests.view.disturbed import DEATH, write_disturbed
from tests.view.samples import measured, small

NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
}


def events_of(*subjects):
    panels = [Panel(each.name, make_chart(each), each.timeline) for each in subjects]
    return json.loads(encode(panels))["traceEvents"]


def check(events):
    """Every event has its fields, and slices of a track do not overlap, in whole microseconds; gives them by track."""
    tracks = defaultdict(list)
    for event in events:
        assert event.keys() >= NEEDED[event["ph"]], event
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert isinstance(event["ts"], int)
            assert isinstance(event["dur"], int)
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track, slices in tracks.items():
        slices.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(slices)), f"slices of {track} overlap"
    return tracks


def test_the_worked_example_passes_the_schema_check(worked):
    _, plan = worked
    tracks = check(events_of(subject_of(plan, "plan", 2)))
    assert sum(lane == COMPUTE for _, lane in tracks) == len(plan.programs)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
def test_schedules_side_by_side_share_no_process(shapes):
    plans = [small(pipelines=pipelines, stages=stages, micro_batches=2) for pipelines, stages in shapes]
    events = events_of(*(subject_of(plan, f"plan {number}") for number, plan in enumerate(plans)))
    check(events)
    processes = [event["pid"] for event in events if event["name"] == "process_name"]
    assert len(processes) == len(set(processes)) == sum(1 + pipelines * stages for pipelines, stages in shapes)
    assert {event["pid"] for event in events} == set(processes)


def test_transfers_have_lanes_of_their_own():
    plan = small(pipelines=2, stages=3, micro_batches=4, latency=7)
    events = events_of(subject_of(plan, "plan"))
    tracks = check(events)
    assert any(lane for _, lane in tracks)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"compute", "communication", "iteration"}


def test_failures_are_instants_and_memory_a_counter(staggered):
    events = events_of(subject_of(staggered, "plan"))
    failures = [event for event in events if event.get("cat") == "failure"]
    assert [event["name"] for event in failures] == ["W1_2 is dead"]
    dead = next(event for event in events if event["name"] == "process_name" and "W1_2" in event["args"]["name"])
    assert failures[0]["pid"] == dead["pid"]
    most = Counter()
    for event in events:
        if event["ph"] == "C":
            most[event["pid"]] = max(most[event["pid"]], event["args"]["activation"])
    assert len(most) == len(staggered.programs)
    assert max(most.values()) == 4


def test_planned_and_measured_stand_side_by_side(staggered):
    run = measured(staggered)
    events = events_of(subject_of(staggered, "planned", 2), Subject("measured", None, run))
    tracks = check(events)
    assert sum(lane == COMPUTE for _, lane in tracks) == 2 * len(staggered.programs)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == len(set(names))
    assert {"planned W0_0", "measured W0_0"} <= set(names)


@pytest.mark.parametrize(("unit", "value"), [("us", 1), ("ms", 1e3), ("second", 1e6), ("slot", 1e3)])
def test_time_units(unit, value):
    assert microseconds(unit) == value


@given(
    lengths=st.lists(st.floats(0, 1e5), min_size=1, max_size=30),
    start=st.floats(0, 1e12),
    unit=st.sampled_from(["ns", "us", "ms", "s", "slot"]),
)
def test_what_follows_without_a_gap_does_so_in_the_trace(lengths, start, unit):
    times = list(accumulate(lengths, initial=start))
    spans = [Span(Server(0, 0), "compute", Instruction(Op.F, 0, 0, 0), *each) for each in pairwise(times)]
    line = Timeline("run", unit, "measured", tuple(spans), (), ())
    events = events_of(Subject("run", None, line))
    check(events)
    slices = sorted((each["ts"], each["ts"] + each["dur"]) for each in events if each.get("cat") == "F")
    assert all(one[1] == other[0] for one, other in pairwise(slices))


def test_what_has_no_length_in_microseconds_is_left_out(staggered):
    events = events_of(Subject("run", None, measured(staggered, unit="ns", pace=700)))
    check(events)
    assert {event["dur"] for event in events if event["ph"] == "X" and event["pid"]} == {1, 2}


def test_transfers_take_as_many_lanes_as_are_under_way_at_once():
    plan = small(pipelines=1, stages=2, micro_batches=4, latency=7)
    events = events_of(subject_of(plan, "plan"))
    sent = [event for event in events if event.get("cat") == "SEND_F"]
    most = max(sum(each["ts"] <= one["ts"] < each["ts"] + each["dur"] for each in sent) for one in sent)
    assert most > 1
    assert {event["tid"] for event in sent} == set(range(1, 1 + most))


def test_slices_have_the_name_of_their_op_so_that_they_can_be_summed(staggered):
    slices = [event for event in events_of(subject_of(staggered, "plan")) if event["ph"] == "X" and event["pid"]]
    assert {event["name"] for event in slices} == {"F", "I", "W", "B", "STEP"}
    assert {event["args"]["instruction"] for event in slices} >= {"2F1.3", "0B2.5", "3STEP"}


def test_iterations_are_slices_of_their_own_as_long_as_they_take(staggered):
    events = events_of(subject_of(staggered, "plan", 3))
    iterations = [event for event in events if event.get("cat") == "iteration"]
    assert [event["name"] for event in iterations] == ["iteration 1", "iteration 2", "iteration 3"]
    assert [event["ts"] for event in iterations] == [0, 30_000, 60_000]
    assert {event["dur"] for event in iterations} == {32_000}
    assert len({event["tid"] for event in iterations}) == 2, "they overlap"


def test_a_run_has_its_figures_and_its_recoveries(tmp_path):
    subject = load_subject(write_disturbed(tmp_path / "run"))
    events = json.loads(encode(make_panels([subject], "stage")))["traceEvents"]
    check(events)
    figures = [event for event in events if event["ph"] == "C"]
    assert [event["args"]["loss"] for event in figures if event["name"] == "loss"] == [4, 3, 2, 1]
    assert sum(event["name"] == "throughput" for event in figures) == 4
    recoveries = [event for event in events if event["name"].startswith("recovery into view")]
    assert [event["args"]["number"] for event in recoveries] == [1, 2]
    assert recoveries[0]["ts"] > DEATH
