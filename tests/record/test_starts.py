"""A run that goes on in its folder: servers begin in their first lives again, and clocks may be others."""

import msgspec
from hypothesis import example, given

from harness.recordings import encode_lines
from recycle.record.following import RecordingFollower
from recycle.record.history import history_of
from recycle.record.processes import Processes
from recycle.record.reading import load_lines, load_run
from recycle.record.recording import ProcessLine, ViewLine
from recycle.view.watching import WatchedRun
from tests.record.starts import CLOCKS, SERVERS, STARTS, Starts


def written(folders, starts, after_each=lambda folder, run: None):
    """The folder of a run that was started so, and what is true of it."""
    folder = folders.mktemp("starts")
    run = Starts(folder)
    for clock, back, actions in starts:
        run.begin(clock, back)
        after_each(folder, run)
        for each in actions:
            run.act(*each)
            after_each(folder, run)
    return folder, run


@given(STARTS)
@example([(CLOCKS[0], 0, [("die", "W1_0"), ("return", "W1_0")] * 2)] * 2)
def test_what_happened_is_read_of_all_starts(tmp_path_factory, starts):
    folder, run = written(tmp_path_factory, starts)
    history = history_of(load_lines(folder))
    assert len(history.deaths) == run.deaths
    assert [change.again for change in history.changes] == run.again
    assert [each for change in history.changes for each in change.joined] == run.lives
    assert sum(len(change.deaths) for change in history.changes) == run.deaths


@given(STARTS)
def test_who_died_before_a_start_is_alive_in_it(tmp_path_factory, starts):
    folder, run = written(tmp_path_factory, starts)
    line, _ = load_run(folder)
    assert {str(server) for server in line.failed} == run.dead
    assert {str(server) for server in line.last(1).failed} <= run.dead


@given(STARTS)
def test_the_newest_process_of_a_server_is_of_the_last_start(tmp_path_factory, starts):
    folder, run = written(tmp_path_factory, starts)
    processes = Processes()
    for line in load_lines(folder):
        if isinstance(line, ProcessLine):
            processes.add(line)
    assert {server: processes.of(server).pid for server in SERVERS} == run.pids


@given(STARTS)
def test_times_of_all_starts_are_of_one_clock(tmp_path_factory, starts):
    folder, run = written(tmp_path_factory, starts)
    for lines in (load_lines(folder), RecordingFollower(folder).look()):
        times = {line.epoch: line.time / 1e6 for line in lines if isinstance(line, ViewLine)}
        assert [times[epoch] - times[0] for epoch in sorted(times)] == [each - run.views[0] for each in run.views]


@given(STARTS)
def test_who_watches_on_sees_what_one_sees_who_comes_later(tmp_path_factory, starts):
    watching = {}

    def look(folder, written):
        run = watching.setdefault(folder, WatchedRun(folder))
        other = WatchedRun(folder)
        run.look()
        other.look()
        mine, theirs = run.state(), other.state()
        assert (mine.steps, mine.losses, mine.servers) == (theirs.steps, theirs.losses, theirs.servers)
        assert [each.step for each in mine.servers] == [written.done[each.server] for each in mine.servers]

    written(tmp_path_factory, starts, look)


def test_recordings_without_what_tells_starts_apart_are_read_as_of_one_clock(tmp_path_factory):
    starts = [(CLOCKS[0], 0, [("train", 2), ("die", "W1_0")]), (CLOCKS[0], 1, [("train", 2)])]
    folder, _ = written(tmp_path_factory, starts)
    told = [each for each in load_lines(folder) if not isinstance(each, ProcessLine)]
    for file in (folder / "events").iterdir():
        rows = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
        for row in rows:
            if row["type"] == "process":
                del row["time"], row["clock"]
        file.write_bytes(encode_lines(rows))
    assert [each for each in load_lines(folder) if not isinstance(each, ProcessLine)] == told
