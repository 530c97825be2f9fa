import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from recycle.view.chart import make_chart
from recycle.view.panel import Panel
from recycle.view.subject import Subject, subject_of
from recycle.view.trace import encode, lanes, microseconds
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
    return json.loads(encode(panels, Path("trace.json")))["traceEvents"]


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
    assert len(tracks) == len(plan.programs)
    sends = sum(each.op.is_send for program in plan.programs.values() for each in program)
    assert len(flows) == 2 * sends


def test_transfers_have_lanes_of_their_own():
    plan = small(pipelines=2, stages=3, micro_batches=4, latency=7)
    events = events_of(subject_of(plan, "plan"))
    tracks, _ = check(events)
    assert any(lane for _, lane in tracks)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"compute", "communication"}


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
    assert len(tracks) == 2 * len(staggered.programs)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == len(set(names))
    assert {"planned W0_0", "measured W0_0"} <= set(names)
    assert len(flows) % 2 == 0


@pytest.mark.parametrize(("unit", "value"), [("us", 1), ("ms", 1e3), ("second", 1e6), ("slot", 1e3)])
def test_time_units(unit, value):
    assert microseconds(unit) == value


def test_lanes_are_as_few_as_the_transfers_under_way_at_once(staggered):
    class Fake:
        def __init__(self, start, end):
            self.start, self.end = start, end

    given = [lane for lane, _ in lanes([Fake(0, 4), Fake(1, 2), Fake(2, 5), Fake(4, 6), Fake(4, 5)])]
    assert given == [0, 1, 1, 0, 2]
