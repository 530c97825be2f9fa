import os
import shutil

import msgspec
import pytest

from harness.recordings import encode_lines
from recycle.errors import PlanFileError, UserError
from recycle.record import following
from recycle.record.following import OtherRunError, RecordingFollower
from recycle.record.reading import load_lines
from recycle.record.recording import DeathLine, InstantLine, ProcessLine, RecoveryLine, RunLine, SpanLine, moved

HEAD = RunLine("recycle run", 1, "a run", "us", "measured")


def said(text):
    return InstantLine("warning", 1.0, None, text)


def append(path, *lines, cut=0):
    content = encode_lines(lines)
    with path.open("ab") as file:
        file.write(content[: len(content) - cut])
    return content[len(content) - cut :]


@pytest.fixture
def events(tmp_path):
    (tmp_path / "events").mkdir()
    return tmp_path / "events"


def test_every_line_comes_once_and_a_line_that_is_being_written_when_it_is_whole(tmp_path, events):
    follower = RecordingFollower(tmp_path)
    assert list(follower.look()) == []
    rest = append(events / "W0_0.jsonl", HEAD, said("one"), said("two"), cut=7)
    assert list(follower.look()) == [HEAD, said("one")]
    assert list(follower.look()) == []
    with (events / "W0_0.jsonl").open("ab") as file:
        file.write(rest)
    append(events / "W0_1.jsonl", HEAD)
    assert list(follower.look()) == [said("two"), HEAD]


def test_times_of_several_clocks_are_moved_to_the_launchers(tmp_path, events):
    here, there = ProcessLine("W0_0", 1, "host1"), ProcessLine("W0_1", 1, "host2", ahead=100.0)
    death = DeathLine("W1_1", 0, 104.0, "was killed", "agent", 1)
    recovery = RecoveryLine("W0_1", 1, 3, *(float(each) for each in range(105, 111)))
    append(events / "W0_0.jsonl", HEAD, here, said("one"))
    append(events / "W0_1.jsonl", HEAD, there, SpanLine("W0_1", "compute", "0F0.1", 102.0, 103.0))
    follower = RecordingFollower(tmp_path)
    first = list(follower.look())
    append(events / "W0_1.jsonl", death, recovery)
    assert first + list(follower.look()) == [
        *(HEAD, here, said("one"), HEAD, there, SpanLine("W0_1", "compute", "0F0.1", 2.0, 3.0)),
        *(msgspec.structs.replace(death, time=4.0), moved(recovery, 100.0)),
    ]
    assert set(load_lines(tmp_path)) == {*first, msgspec.structs.replace(death, time=4.0), moved(recovery, 100.0)}


def test_a_recording_that_another_run_has_begun_anew_is_named(tmp_path, events):
    follower = RecordingFollower(tmp_path)
    append(events / "W0_0.jsonl", HEAD, said("one"))
    list(follower.look())
    (events / "W0_0.jsonl").write_bytes(b"")
    with pytest.raises(PlanFileError, match="another run has begun here"):
        list(follower.look())


@pytest.mark.parametrize(
    "replace",
    [
        lambda events: shutil.rmtree(events),
        lambda events: (events / "W0_0.jsonl").unlink(),
        # A new file can have the old one's number, and be longer.
        lambda events: (events / "W0_0.jsonl").write_bytes(encode_lines([HEAD, said("two"), said("two and more")])),
    ],
    ids=["no recordings", "a recording is gone", "a recording is overwritten"],
)
def test_a_run_that_begins_in_the_folder_of_another_is_noticed(tmp_path, events, replace):
    follower = RecordingFollower(tmp_path)
    append(events / "W0_0.jsonl", HEAD, said("one"))
    append(events / "W0_1.jsonl", HEAD)
    list(follower.look())
    replace(events)
    with pytest.raises(OtherRunError):
        list(follower.look())


@pytest.mark.parametrize("name", ["events", "."])
def test_a_folder_that_cannot_be_read_for_one_look_is_named_and_loses_nothing(tmp_path, name):
    run, away = tmp_path / "run", tmp_path / "away"
    (run / "events").mkdir(parents=True)
    follower = RecordingFollower(run)
    append(run / "events" / "W0_0.jsonl", HEAD, said("one"))
    assert len(list(follower.look())) == 2
    (run / name).resolve().rename(away)
    if name == "events":
        (run / name).write_bytes(b"")
    with pytest.raises(UserError, match=rf"{run}.*: cannot be read: "):
        list(follower.look())
    (run / "events").unlink(missing_ok=True)
    away.rename((run / name).resolve())
    append(run / "events" / "W0_0.jsonl", said("two"))
    assert list(follower.look()) == [said("two")]


def test_what_is_no_recording_is_named(tmp_path, events):
    (events / "W0_0.jsonl").write_bytes(b"nothing\n")
    with pytest.raises(PlanFileError, match="W0_0"):
        list(RecordingFollower(tmp_path).look())


@pytest.mark.parametrize("more", ["", ',"new":1'], ids=["the same fields", "a new field"])
def test_a_recording_of_another_version_is_named(tmp_path, events, more):
    append(events / "W0_0.jsonl", said("one"))
    content = encode_lines([HEAD]).replace(b'"version":1', b'"version":2' + more.encode())
    (events / "W0_1.jsonl").write_bytes(content)
    with pytest.raises(PlanFileError, match=r"W0_1.*version 2, and this release reads version 1"):
        list(RecordingFollower(tmp_path).look())


@pytest.mark.parametrize("piece", [1, 90, 400, 1 << 20])
def test_a_long_run_is_read_in_pieces_and_of_its_instructions_the_last(tmp_path, events, monkeypatch, piece):
    monkeypatch.setattr(following, "PIECE", piece)
    expected = set()
    for server in ("W0_0", "W1_0"):
        spans = [SpanLine(server, "compute", "0F0.0", float(n), n + 1.0, n) for n in range(40)]
        facts = [said(f"{server} has made {n}") for n in range(40)]
        append(events / f"{server}.jsonl", HEAD, *(each for pair in zip(facts, spans, strict=True) for each in pair))
        expected |= {*facts, spans[-1]}
    pieces = list(RecordingFollower(tmp_path).pieces())
    read = [line for lines in pieces for line in lines]
    assert expected <= set(read)
    assert len(read) == len(set(read)) + 1
    assert (len(pieces) > 2) == (piece < 1000)
    assert any(isinstance(line, SpanLine) and not line.iteration for line in read) == (piece > 1000)


def test_a_line_that_never_ends_is_named_and_takes_no_memory(tmp_path, events, monkeypatch):
    monkeypatch.setattr(following, "PIECE", 100)
    monkeypatch.setattr(following, "LONGEST_LINE", 200)
    append(events / "W0_0.jsonl", HEAD)
    with (events / "W0_0.jsonl").open("ab") as file:
        file.write(b"0" * 1000)
    follower = RecordingFollower(tmp_path)
    with pytest.raises(PlanFileError, match="a line of 200 bytes or more"):
        list(follower.look())


def test_what_was_written_last_counts_though_the_clock_was_set_back(tmp_path, events):
    first, second = events / "W0_0.jsonl", events / "W0_1.jsonl"
    follower = RecordingFollower(tmp_path)

    def heard(at, *files):
        for file in files:
            append(file, HEAD)
        for file, when in at.items():
            os.utime(file, (when, when))
        assert [*follower.look()]
        return follower.heard

    assert heard({first: 9000.0, second: 8000.0}, first, second) == 9000.0
    assert heard({second: 500.0}, second) == 500.0
    assert list(follower.look()) == []
    assert follower.heard == 500.0
    assert heard({first: 600.0}, first) == 600.0
