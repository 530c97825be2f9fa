import json
from collections import Counter, defaultdict
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.view.chart import make_chart
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import Subject, load_subject, subject_of
from recycle.view.trace import Part, encode, lanes
from recycle.wording import microseconds
from tests.view.disturbed import DEATH, write_disturbed
from tests.view.samples import measured, small

NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}


def events_of(*subjects):
    panels = [Panel(each.name, make_chart(each, each.timeline), each.timeline) for each in subjects]
    return json.loads(encode(panels))["traceEvents"]


def check(events):
    """Every event has its fields, slices nest on their track, and every flow leaves one slice and enters another."""
    tracks = defaultdict(list)
    for event in events:
        assert event.keys() >= NEEDED[event["ph"]], event
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track, slices in tracks.items():
        open_until = []
        for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6, f"slices of {track} overlap without nesting"
            open_until.append(end)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            inside = tracks[event["pid"], event["tid"]]
            assert any(start - 1e-6 <= event["ts"] < end for start, end in inside), f"{event} is on no slice"
    for ends in flows.values():
        assert [each["ph"] for each in ends] == ["s", "f"]
        assert ends[0]["ts"] <= ends[1]["ts"]
    return tracks, flows


def test_the_worked_example_passes_the_schema_check(worked):
    _, plan = worked
    tracks, flows = check(events_of(subject_of(plan, "plan", 2)))
    assert sum(lane == 0 for _, lane in tracks) == len(plan.programs)
    sends = sum(each.op.is_send for program in plan.programs.values() for each in program)
    assert len(flows) == 2 * sends


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
def test_schedules_side_by_side_share_no_process_and_no_arrow(shapes):
    plans = [small(pipelines=pipelines, stages=stages, micro_batches=2) for pipelines, stages in shapes]
    events = events_of(*(subject_of(plan, f"plan {number}") for number, plan in enumerate(plans)))
    check(events)
    processes = [event["pid"] for event in events if event["name"] == "process_name"]
    assert len(processes) == len(set(processes)) == sum(1 + pipelines * stages for pipelines, stages in shapes)
    assert {event["pid"] for event in events} == set(processes)
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(arrows) == len(set(arrows))


def test_transfers_have_lanes_of_their_own():
    plan = small(pipelines=2, stages=3, micro_batches=4, latency=7)
    events = events_of(subject_of(plan, "plan"))
    tracks, _ = check(events)
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
    tracks, flows = check(events)
    assert sum(lane == 0 for _, lane in tracks) == 2 * len(staggered.programs)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == len(set(names))
    assert {"planned W0_0", "measured W0_0"} <= set(names)
    assert len(flows) % 2 == 0


@pytest.mark.parametrize(("unit", "value"), [("us", 1), ("ms", 1e3), ("second", 1e6), ("slot", 1e3)])
def test_time_units(unit, value):
    assert microseconds(unit) == value


@given(
    lengths=st.lists(st.floats(0, 1e5), min_size=1, max_size=30),
    start=st.floats(0, 1e12),
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e6, 0.1, 1 / 3]),
)
def test_what_follows_without_a_gap_does_so_in_whole_nanoseconds(lengths, start, scale):
    part = Part("", None, None, scale, None)
    times = list(accumulate(lengths, initial=start / scale))
    slices = [part.lasts(*each) for each in pairwise(times)]
    for whole in (round, int):
        begins = [whole(each["ts"] * 1000) for each in slices]
        ends = [begin + whole(each["dur"] * 1000) for begin, each in zip(begins, slices, strict=True)]
        assert ends[:-1] == begins[1:]
        assert all(begin <= end for begin, end in zip(begins, ends, strict=True))


@pytest.mark.parametrize("pace", [0.3, 0.7, 1.7])
def test_what_has_no_length_in_nanoseconds_is_left_out_with_its_arrows(staggered, pace):
    run = Subject("run", None, measured(staggered, unit="ns", pace=pace))
    tracks, flows = check(events_of(run))
    assert tracks
    assert flows


def test_lanes_are_as_few_as_the_transfers_under_way_at_once(staggered):
    class Fake:
        def __init__(self, start, end):
            self.start, self.end = start, end

    given = [lane for lane, _ in lanes([Fake(0, 4), Fake(1, 2), Fake(2, 5), Fake(4, 6), Fake(4, 5)])]
    assert given == [0, 1, 1, 0, 2]


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
