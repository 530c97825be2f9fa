"""What is written only for looking: it stops with one warning, begins again by itself, and is whole at any time."""

import os
import resource
import shutil
from contextlib import contextmanager

import pytest

from recycle.errors import EndedBySignal, UserError
from recycle.record.best_effort import BestEffort, GrowingFile

HEAD, PIECE = b"head\n", b"a piece that is longer than its head\n"


@contextmanager
def no_room(path):
    """A file of this size is as large as the file may get, but for some bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + len(PIECE) // 2, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def folder_moved(path):
    aside = path.parent.with_name("nice-name")
    path.parent.rename(aside)
    path.parent.write_bytes(b"a file where the folder was")
    yield
    path.parent.unlink()
    aside.rename(path.parent)


@contextmanager
def folder_unwritable(path):
    path.unlink()
    path.mkdir()
    yield
    path.rmdir()


@pytest.mark.parametrize("trouble", [no_room, folder_moved, folder_unwritable])
def test_pieces_are_left_out_while_they_cannot_be_written(tmp_path, trouble):
    warnings = []
    path = tmp_path / "run" / "file"
    file = GrowingFile(path, HEAD, BestEffort("the recording", warnings.append), b"\n")
    file.add(PIECE)
    with trouble(path):
        file.add(PIECE)
        file.add(PIECE)
    (stops,) = warnings
    assert stops.startswith("the recording cannot be written: ")
    file.add(PIECE)
    file.add(PIECE)
    assert warnings == [stops, "the recording is written again"]
    assert path.read_bytes().removeprefix(HEAD).removeprefix(PIECE).removeprefix(HEAD) in (PIECE * 2, PIECE)
    file.close()


def test_what_comes_after_the_end_is_left_out(tmp_path):
    path = tmp_path / "file"
    file = GrowingFile(path, HEAD, BestEffort("the recording", pytest.fail), b"\n")
    file.add(PIECE)
    file.close()
    file.add(PIECE)
    assert path.read_bytes() == HEAD + PIECE


def test_a_file_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    """A pipe that is full does not answer until somebody reads it."""
    monkeypatch.setattr("recycle.record.best_effort.PATIENCE", 0.1)
    path, warnings, large = tmp_path / "file", [], PIECE * 10_000
    os.mkfifo(path)
    file = GrowingFile(path, HEAD, BestEffort("the recording", warnings.append), b"\n")
    for piece in (large, PIECE, PIECE):
        file.add(piece)
    stops = "the recording cannot be written: no answer within 0.1 s; the run does without it until it can be"
    assert warnings == [stops]
    # What is written as soon as somebody reads may take its time.
    file._calls._patience = 60.0
    with path.open("rb", buffering=0) as end:
        content = b""
        while len(content) < len(HEAD + large):
            content += end.read(len(large))
        while len(warnings) == 1:
            file.add(PIECE)
        assert warnings == [stops, "the recording is written again"]
        assert content + end.read(len(large)) == HEAD + large + PIECE
        file.close()


@pytest.mark.parametrize("remove", [os.unlink, lambda path: shutil.rmtree(path.parent)], ids=["file", "folder"])
def test_a_file_that_was_removed_is_begun_anew(tmp_path, remove):
    path = tmp_path / "run" / "file"
    file = GrowingFile(path, HEAD, BestEffort("the recording", pytest.fail))
    file.add(PIECE)
    remove(path)
    file.add(PIECE)
    file.close()
    assert path.read_bytes() == HEAD + PIECE


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), UserError("loss.svg: no room")])
def test_only_what_is_the_systems_or_the_users_is_passed_over(error):
    warnings = []
    output = BestEffort("it", warnings.append)
    with output:
        raise error
    assert len(warnings) == 1
    for passed_on in (ZeroDivisionError(), EndedBySignal("told to end", 15)):
        with pytest.raises(type(passed_on)), output:
            raise passed_on
