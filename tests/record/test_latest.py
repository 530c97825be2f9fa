"""Of a long run, what its last iterations were, without all the others in memory."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recycle
from harness.recordings import write_events
from recycle import files
from recycle.record.reading import load_recording, load_run, next_epoch
from recycle.record.recording import DeathLine, IterationLine, RecoveryLine, RunLine, SpanLine, ViewLine
from recycle.view.subject import load_subject
from tests.view.disturbed import write_disturbed

HEAD = RunLine("recycle run", 1, "a run", "us", "measured")
SERVERS = ("W0_0", "W1_0")


def view(epoch, time, step, restore="memory"):
    return ViewLine(epoch, time, list(SERVERS), [], step, "a cause", restore, 10, 1.0, "the catalogue")


def write_run(folder, stretches):
    """A run's folder.

    Args:
        folder: which.
        stretches: for each view, the iteration with which it begins, how many are made, and whether one more is begun.
    """
    lines = {server: [HEAD] for server in SERVERS}
    launcher, time = [HEAD], 0.0
    for epoch, (step, made, interrupted) in enumerate(stretches):
        # Some servers tell of views, too.
        for each in (launcher, *lines.values()):
            each.append(view(epoch, time, step, "checkpoint" if epoch else "memory"))
        for iteration in range(step, step + made + interrupted):
            for late, server in enumerate(SERVERS):
                start = time + late
                lines[server].append(SpanLine(server, "compute", f"{late}F0.0", start, start + 5.0, iteration))
                if iteration < step + made:
                    lines[server].append(IterationLine(server, iteration, 1.0, [1.0] * late, 1, epoch))
            time += 10.0
    write_events(folder, {"launcher": launcher, **lines})


@st.composite
def stretches(draw):
    """Views of a run, each of which begins where the one before it was interrupted."""
    found, step = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 5))):
        made = draw(st.integers(0, 6))
        found.append((step, made, draw(st.booleans())))
        step += made
    return found


@given(stretches=stretches(), count=st.integers(1, 8))
def test_the_last_iterations_are_the_same_whether_all_are_read_or_these(tmp_path_factory, stretches, count):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, stretches)
    whole, (some, _) = load_recording(folder), load_run(folder, count)
    assert some.last(count).spans == whole.last(count).spans
    assert {span.iteration for span in some.spans} <= {span.iteration for span in whole.spans}
    assert len({span.iteration for span in some.spans}) <= count + 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_server_that_came_back_has_a_recording_of_each_life(tmp_path, count):
    folder = write_disturbed(tmp_path / "run")
    assert load_subject(folder, count).timeline == load_recording(folder).last(count)


def test_after_a_checkpoint_the_last_iterations_are_those_behind_it(tmp_path):
    write_run(tmp_path, [(0, 100, True), (40, 3, True)])
    for line in (load_recording(tmp_path).last(2), load_run(tmp_path, 2)[0].last(2)):
        # The last one is under way.
        assert line.first == 42
        assert {span.iteration for span in line.spans} == {0, 1}
        assert line.end < 50.0


def test_a_recording_is_read_however_large_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1000)
    write_run(tmp_path, [(0, 50, True), (50, 2, False)])
    assert len(load_recording(tmp_path).spans) == 106
    assert load_subject(tmp_path, 1).timeline.first == 51
    assert len(recycle.read_run(tmp_path).iterations) == 52


def test_figures_of_a_run_take_no_memory_for_its_instructions(tmp_path):
    spans = [SpanLine("W0_0", "compute", "0F0.0", float(n), n + 1.0, n // 100) for n in range(20_000)]
    write_events(tmp_path, {"W0_0": [HEAD, view(0, 0.0, 0), *spans, IterationLine("W0_0", 0, 1.0, [2.0], 1)]})
    size = (tmp_path / "events" / "W0_0.jsonl").stat().st_size
    del spans
    recycle.read_run(tmp_path)
    tracemalloc.start()
    try:
        assert len(recycle.read_run(tmp_path).iterations) == 1
        figures = tracemalloc.get_traced_memory()[1]
        load_subject(tmp_path, 1)
        last = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert figures < size / 4
    assert last < size / 2


LINES = st.one_of(
    st.builds(view, st.integers(0, 9), st.just(0.0), st.just(0)),
    st.builds(lambda epoch: IterationLine("W0_0", 0, 1.0, [], 1, epoch), st.integers(0, 9)),
    st.builds(lambda epoch: RecoveryLine("W0_0", epoch, 0, *[0.0] * 6), st.integers(0, 9)),
    st.just(SpanLine("W0_0", "compute", "0F0.0", 0.0, 1.0)),
    st.just(DeathLine("W1_0", 0, 1.0, "died", "agent", 1)),
)


@given(lines=st.lists(LINES, max_size=30), rest=st.binary(max_size=20), between=st.binary(max_size=20))
def test_views_are_numbered_on_from_the_last_ones(tmp_path_factory, lines, rest, between):
    folder = tmp_path_factory.mktemp("run")
    # In each file, later lines are of later views.
    lines.sort(key=lambda line: getattr(line, "epoch", 0) if not isinstance(line, DeathLine) else 0)
    write_events(folder, {"W0_0": [HEAD, *lines], "W1_0": [HEAD]})
    with (folder / "events" / "W0_0.jsonl").open("ab") as file:
        file.write(between + b"\n" + rest)
    epochs = [line.epoch for line in lines if not isinstance(line, SpanLine | DeathLine)]
    assert next_epoch(folder) == max(epochs, default=-1) + 1


def test_the_next_view_is_found_at_the_end_of_a_recording_of_any_size(tmp_path):
    write_events(tmp_path, {"W0_0": [IterationLine("W0_0", 0, 1.0, [], 1, 6)]})
    tail = (tmp_path / "events" / "W0_0.jsonl").read_bytes()
    with (tmp_path / "events" / "W0_0.jsonl").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(b"\n" + tail)
    assert next_epoch(tmp_path) == 7
    assert msgspec.json.decode(tail)["epoch"] == 6
