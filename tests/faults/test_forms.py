"""Traces mean what they say, whatever the form in which they say it."""

import bz2
import gzip
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.errors import UserError
from recycle.faults.errors import FaultError
from recycle.faults.file import load_faults
from recycle.faults.node_traces import UNITS
from recycle.faults.outages import Outages, load_outages
from recycle.faults.server_trace import ADD, REMOVE
from recycle.job import Job, Server
from recycle.study.answer import Bill, answer
from recycle.study.compare import StudySetting
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground

EPOCH = 1_720_000_000.0
JOB = paper_job(pipelines=2, stages=2)


class History(NamedTuple):
    """Outages of nodes, in hundredths of a day; they may overlap and touch.

    Attributes:
        nodes: how many there are, each with an outage.
        end: of the trace, at which an outage ends.
        outages: node, begin, end; the first one begins with the trace.
    """

    nodes: int
    end: int
    outages: tuple[tuple[int, int, int], ...]

    def name(self, node: int) -> str:
        return f"n{node + 8}"


@st.composite
def histories(draw: st.DrawFn) -> History:
    end = draw(st.integers(20, 300))
    nodes = draw(st.integers(4, 6))
    found = [(draw(st.integers(0, nodes - 1)), 0, draw(st.integers(1, end - 1)))]
    found.append((draw(st.integers(0, nodes - 1)), draw(st.integers(0, end - 1)), end))
    for node in [*range(nodes), *draw(st.lists(st.integers(0, nodes - 1), max_size=8))]:
        start = draw(st.integers(0, end - 1))
        found.append((node, start, draw(st.integers(start + 1, end))))
    return History(nodes, end, tuple(sorted(found, key=lambda each: each[1])))


def written(history: History, unit: str, begin: float) -> dict[str, str]:
    """A history in every form that names nodes, its times in a unit and from some seconds on."""

    def time(hundredths: int) -> str:
        return repr((begin + hundredths * 864) / UNITS[unit])

    facts = f"# nodes {history.nodes}\n# days {history.end / 100}\n"
    intervals = [f"{history.name(node)},{time(start)},{time(end)}" for node, start, end in history.outages]
    changes = [
        (when, kind, node) for node, start, end in history.outages for when, kind in ((start, "remove"), (end, "add"))
    ]
    events = [
        {
            "node_id": history.name(node),
            "event_time": (begin + when * 864) / UNITS["days"],
            "event_type": "fault_start" if kind == "remove" else "fault_end",
        }
        for when, kind, node in sorted(changes, key=lambda each: (each[0], each[1] == "add"))
    ]
    return {
        "intervals.csv": f"{facts}node,start_{unit},end_{unit}\n" + "\n".join(intervals),
        "events.json": json.dumps(events),
    }


def read(folder: Path, name: str, content: str, job: Job | None = None) -> Outages:
    path = folder / name
    path.write_text(content)
    return load_outages(str(path), job)


def same(one: Outages, other: Outages) -> bool:
    assert (one.nodes, len(one.entries)) == (other.nodes, len(other.entries))
    assert one.seconds == pytest.approx(other.seconds, abs=1e-3)
    for mine, yours in zip(one.entries, other.entries, strict=True):
        assert mine.node == yours.node
        assert mine[1:] == pytest.approx(yours[1:], abs=1e-3)
    return True


@given(history=histories(), unit=st.sampled_from(sorted(UNITS)))
def test_one_history_in_every_form_and_from_any_begin_is_the_same(tmp_path_factory, history, unit):
    folder = tmp_path_factory.mktemp("forms")
    first = read(folder, "intervals.csv", written(history, "seconds", 0.0)["intervals.csv"])
    for begin in (0.0, EPOCH):
        for name, content in written(history, unit, begin).items():
            assert same(first, read(folder, name, content)), (name, begin)


@given(
    counts=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=2, max_size=8),
    unit=st.sampled_from(sorted(UNITS)),
)
def test_counts_in_every_unit_and_from_any_begin_are_the_same(tmp_path_factory, counts, unit):
    folder = tmp_path_factory.mktemp("counts")
    moments, time = [(0, 10)], 0
    for step, live in counts:
        time += step
        moments.append((time, live))
    moments[1] = (moments[1][0], 3)
    forms = [
        f"{name},live\n" + "\n".join(f"{(begin + 60 * time) / UNITS[name]!r},{live}" for time, live in moments)
        for begin, name in ((0.0, "seconds"), (0.0, unit), (EPOCH, unit))
    ]
    first, *others = (read(folder, f"{number}.txt", text) for number, text in enumerate(forms))
    assert all(same(first, each) for each in others)


def test_who_fails_when_the_trace_ends_is_counted_as_such(tmp_path):
    outages = read(tmp_path, "a.csv", "seconds,live\n0,2\n1,1\n2,2\n3,1\n")
    assert (len(outages.entries), outages.at_end) == (1, 1)
    history = FailureHistory.recorded(outages)
    assert history.uncounted == {"at the very end": 1, "without a length": 0}
    ground = Ground(JOB, 12.0, 16, outages.failures_per_second)
    found = answer(StudySetting(ground, history, ("dropping",), 1), Bill(0), with_choices=False)
    assert found.as_json()["failures_at_the_very_end"] == 1
    assert read(tmp_path, "b.csv", "seconds,live\n0,2\n1,1\n3,2\n").at_end == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hours,live\n0,4\n1,²\n", "line 3: 1, ²: write a time and the count"),
        ("hours,live\n0,4\n1,٣\n", "line 3: "),
        ("hours,live\n0,4\n\uff11,3\n", "line 3: time is '\uff11': write a number"),
        ("hours,live\n0,4\n1_0,3\n", "line 3: time is '1_0': write a number"),
        ("hours,live\n0,4\nnan,3\n", "line 3: time is 'nan': write a number"),
        ("hours,live\n0,4\n1e999,3\n", "line 3: time is '1e999': write a number"),
        ("hours,live\n0,999999999999\n1,3\n", "line 2: 999999999999 live nodes: 1000000 at most"),
        ("hours,live\n0,4\n1\n", "line 3: 1: write a time and the count"),
        ("node,start_days,end_days\nn[01-04],1,2\n", "line 2: 'n.01-04.' is no single name: write each"),
        ("node,start_days,end_days\n,1,2\n", "line 2: the name of the node is missing"),
        ("node,start_days,end_days\nw1_2,1,2\n", "line 2: 'w1_2' is no server's name; write W1_2"),
        (
            '[{"node_id": "n[1-2]", "event_time": 1, "event_type": "fault_start"}]',
            "entry 1: 'n.1-2.' is no",
        ),
        ("node,start_days,end_days\nx,1720000000,1720000001\n", "line 2: time is 1720000000 days, which is more than"),
        ("node,start_seconds,end_seconds\nx,1720000000000,\n", "line 2: time is 1720000000000 seconds, which is more"),
        ("# nodes 1e300\nnode,start_days,end_days\nx,5,6\n", "# nodes 1e.300: give a whole number from 1 to 1000000"),
        ("# nodes 2.5\nnode,start_days,end_days\nx,5,6\n", "# nodes 2.5: give a whole number"),
        ("# days 2\u0660\nnode,start_days,end_days\nx,5,6\n", "line 1: # days 2\u0660: give a number"),
        ("# nodes=4x\nnode,start_days,end_days\nx,5,6\n", "line 1: # nodes 4x: give a number"),
        ("# nodes: eight\nnode,start_days,end_days\nx,5,6\n", "line 1: # nodes eight: give a number"),
        ("# nodes 1,000\nnode,start_days,end_days\nx,5,6\n", "line 1: # nodes 1,000: give a number alone"),
        ("# nodes 4, days 3\nnode,start_days,end_days\nx,5,6\n", "line 1: # nodes 4, days 3: give a number alone"),
        ("# nodes 8\n# servers 9\nnode,start_days,end_days\nx,5,6\n", "line 2: # nodes 9: a line above says 8"),
        ('node,start_days,end_days\n"gpu1,gpu2",1,2\n', "line 2: 'gpu1,gpu2' is no single name"),
        ("node,start_days,end_days\ngpu1 gpu2,5,6\n", "line 2: 'gpu1 gpu2' is no single name"),
        ("node,start_days,end_days\nx,5,4\n", "line 2: its end 4 is before its start 5"),
        ("node,start_hours,end_hours\nx,'1,5',3\n".replace("'", '"'), "line 2: time is '1,5': write a number of hours"),
        ("node,start_hours,end_hours\nx,1:30,3\n", "line 2: time is '1:30': write a number of hours, such as 1234.5"),
        ("node,start_days,end_days\n", "nothing is lost in it: give a trace with at least one failure"),
        ("hours,live\n", "nothing is lost in it"),
        ("[]", "nothing is lost in it"),
        ("# nodes 4\n", "it is empty"),
        (
            "node;start_days;end_days\nx;5;6\n",
            "line 1: node;start_days;end_days: write time,",
        ),
        ("2021-12-11,11:40:09,50\n", "line 1: 2021-12-11, 11:40:09, 50: write .* a study also reads .*hours,live"),
        ("0,add,node1\n", "line 1: server 'node1': .* for nodes, write node,start_days,end_days"),
        ("node,start_days,end_days\n'x,1,3\ny,2,6\n".replace("'", '"'), "this is no CSV file: .*quotes in pair"),
        (
            '[{"node_id": "x", "event_time": 1, "event_type": "fault_start"},\n]',
            "trailing comma.*, line 2: a JSON trace",
        ),
    ],
)
def test_what_means_nothing_is_a_line_with_its_number(tmp_path, text, message):
    path = tmp_path / "trace.json" if text.startswith("[") else tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(FaultError, match=message):
        load_outages(str(path), JOB)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"node,start_days,end_days\nM\xfcnchen,1,2\n", "line 2: this is no text in UTF-8"),
        ("a.csv", gzip.compress(b"hours,live\n", mtime=0), "this is packed with gzip: unpack it"),
        ("a.json", bz2.compress(b"[]"), "this is packed with bzip2: unpack it"),
        ("a.csv", b"PAR1" + bytes(range(256)), "this is a Parquet file: save it as text"),
        ("a.csv", bytes.fromhex("d0cf11e0a1b11ae1"), "this is an Excel workbook: save it as text"),
        ("a.json", b'{"events": []}', "a JSON trace is a list"),
        ("a.json", b'{"node_id": "a"}\n{"node_id": "b"}\n', "a JSON trace is a list"),
    ],
)
def test_what_is_no_text_of_a_trace_is_a_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_outages(str(tmp_path / name), JOB)
    in_a_run = message if name.endswith(".csv") else r"end in \.toml for a fault file, or \.csv or \.txt for a trace"
    with pytest.raises(UserError, match=in_a_run):
        load_faults(tmp_path / name, JOB, 9)


@pytest.mark.parametrize(
    "comment",
    [
        "# Nodes: 8",
        '"# nodes 8"',
        "# nodes 8,,",
        "# nodes,8,",
        "  # nodes 8",
        "#NODES=8",
        "# nodes 8\n# nodes failed\n# nodes  8",
        "# nodes 8\n# servers failed\n# day 3",
    ],
)
def test_a_comment_says_how_many_nodes_there_are_in_any_letters(tmp_path, comment):
    assert read(tmp_path, "a.csv", f"{comment}\nnode,start_days,end_days\nx,1,2\ny,3,4\n").nodes == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("counts.csv", "hours,live\n0,4\n1,3\n2,3\n"),
        ("open.csv", "# nodes 4\nnode,start_hours,end_hours\na,1,\na,1.5,2\n"),
    ],
)
def test_a_last_line_without_news_says_how_long_a_trace_lasts(tmp_path, name, text):
    outages = read(tmp_path, name, text)
    assert (outages.nodes, outages.seconds, outages.at_end) == (4, 7200, 0)
    assert [each[1:] for each in outages.entries] == [(3600, 7200)]


def test_outages_without_a_length_are_said_to_count_as_none(tmp_path):
    outages = read(tmp_path, "a.csv", "node,start_days,end_days\na,1,1\nb,2,3\nb,3,3\n")
    assert (len(outages.entries), outages.without_length, outages.at_end) == (1, 1, 0)
    assert FailureHistory.recorded(outages).uncounted == {"at the very end": 0, "without a length": 1}
    assert outages.resampled(5, 0).without_length == 1


def test_a_header_in_any_letters_is_one(tmp_path):
    for text in ("Node,Start_Hours,End_Hours\nx,0,1\ny,2,3\n", "Hours,Live\n0,4\n3,3\n"):
        assert read(tmp_path, "a.csv", text).seconds == 10_800


def test_dates_before_2001_are_dates(tmp_path):
    outages = read(tmp_path, "a.csv", "node,start_seconds,end_seconds\na,840000000,840003600\nb,840100000,840103600\n")
    assert outages.seconds == 103_600


@st.composite
def server_outages(draw: st.DrawFn) -> list[tuple[Server, int, int]]:
    """Outages of a job's servers, in tenths of a second; those of one server do not touch."""
    found = []
    for server in JOB.servers():
        times = sorted(draw(st.lists(st.integers(0, 5000), max_size=6, unique=True)))
        found += [(server, start, end) for start, end in zip(times[::2], times[1::2], strict=False)]
    assume(found)
    return sorted(found, key=lambda each: (each[1], each[0]))


@given(outages=server_outages())
def test_outages_of_servers_are_the_same_as_those_of_as_many_nodes(tmp_path_factory, outages):
    folder = tmp_path_factory.mktemp("servers")
    number = {server: place for place, server in enumerate(JOB.servers())}
    nodes = [(f"n{number[server]}", start / 10, end / 10) for server, start, end in outages]
    changes = [
        (when, kind, str(each)) for each, *ends in outages for when, kind in zip(ends, (REMOVE, ADD), strict=True)
    ]
    changes.sort()
    faults = [
        f'[[fault]]\nkind = "{"kill" if kind == REMOVE else "join"}"\nserver = "{name}"\nat = "{when * 100}ms"\n'
        for when, kind, name in reversed(changes)
    ]
    forms = {
        "header.csv": ["time,change,server", *(f"{when / 10}s,{kind},{name}" for when, kind, name in changes)],
        "bare.csv": [f"{when / 10},{kind},{name}" for when, kind, name in changes],
        "faults.toml": faults,
        "intervals.csv": ["node,start_seconds,end_seconds", *(f"{node},{start},{end}" for node, start, end in nodes)],
    }
    first, *others = (read(folder, name, "\n".join(lines), JOB) for name, lines in forms.items())
    # Which node is which is known of those alone that the trace names.
    assert all(same(first, each) for each in others[:2])
    assert [each[1:] for each in others[2].entries] == [pytest.approx(each[1:], abs=1e-3) for each in first.entries]


@pytest.mark.parametrize("begin", [0, 1720000000])
def test_servers_are_named_in_every_form_that_names_nodes(tmp_path, begin):
    outages = [("W0_0", 100, 200), ("W0_1", 300, 400), ("W0_0", 350, 500)]
    changes = sorted([(s, "remove", name) for name, s, _ in outages] + [(e, "add", name) for name, _, e in outages])
    first = 100 if begin else 0
    lines = "".join(f"{time - first},{change},{name}\n" for time, change, name in changes)
    intervals = "".join(f"{name},{begin + start},{end + begin}\n" for name, start, end in outages)
    kinds = {"remove": "fault_start", "add": "fault_end"}
    events = [
        {"node_id": name, "event_time": (begin + time) / 86_400, "event_type": kinds[change]}
        for time, change, name in changes
    ]

    def load(name, text):
        (tmp_path / name).write_text(text)
        return load_outages(str(tmp_path / name), JOB)

    expected = load("changes.csv", lines)
    assert [each.end - each.start for each in expected.entries] == [100, 100, 150]
    for name, text in (
        ("intervals.csv", f"node,start_seconds,end_seconds\n{intervals}"),
        ("events.json", json.dumps(events)),
    ):
        found = load(name, text)
        assert (found.nodes, found.is_of_servers) == (expected.nodes, True)
        assert [each.node for each in found.entries] == [each.node for each in expected.entries]
        for one, other in zip(found.entries, expected.entries, strict=True):
            assert one[1:] == pytest.approx(other[1:], abs=0.01)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", '[[fault]]\nkind = "kill"\nserver = "W9_9"\nat = "5s"\n', "fault 1: server W9_9: this job has"),
        ("a.json", '[{"node_id": "W9_9", "event_time": 1, "event_type": "fault_start"}]', "entry 1: server W9_9"),
        ("a.csv", "node,start_days,end_days\nW9_9,1,2\n", "line 2: server W9_9"),
    ],
)
def test_a_server_that_a_job_lacks_is_named_by_its_place_in_the_file(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(FaultError, match=message):
        load_outages(str(tmp_path / name), JOB)


def test_a_name_that_is_no_trace_is_answered_with_those_that_are():
    with pytest.raises(FaultError, match=r"shared-gpu: its name .*, or be one of language-model-cluster, shared-gpus"):
        load_outages("shared-gpu", JOB)
