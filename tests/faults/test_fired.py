import pytest

from recycle.errors import UserError
from recycle.faults.errors import FaultError
from recycle.faults.fired import FiredFile, FiredLine, load_fired
from recycle.faults.menu import Fault, Faults, Kind
from recycle.job import Server

KILL = Fault(Kind.KILL, (Server(1, 2),), step=7)
LOSS = Fault(Kind.STORE_LOSS, at=3.0)


def test_all_processes_append_to_one_file(tmp_path):
    path = tmp_path / "fired.jsonl"
    worker, launcher = FiredFile(path, pytest.fail, Server(1, 2), incarnation=1), FiredFile(path, pytest.fail)
    worker.write(KILL, 20)
    launcher.write(LOSS, 10)
    assert load_fired(path) == (
        FiredLine(10, "launcher", 0, "store-loss", "store-loss at 3s"),
        FiredLine(20, "W1_2", 1, "kill", "kill of W1_2 in iteration 8"),
    )


def test_what_had_a_step_and_did_not_fire_is_found(tmp_path):
    path = tmp_path / "fired.jsonl"
    later = Fault(Kind.KILL, (Server(1, 2),), step=9)
    faults = Faults((KILL, later, LOSS))
    file = FiredFile(path, pytest.fail, Server(1, 2))
    assert file.unfired(faults) == (KILL, later)
    file.write(KILL, 20)
    assert file.unfired(faults) == (later,)


def test_what_fired_in_an_earlier_start_has_not_fired_in_this_one(tmp_path):
    path = tmp_path / "fired.jsonl"
    FiredFile(path, pytest.fail).write(KILL, 20)
    again = FiredFile(path, pytest.fail)
    assert again.unfired(Faults((KILL,))) == (KILL,)
    again.write(KILL, 30)
    assert again.unfired(Faults((KILL,))) == ()


def test_where_a_run_goes_on_what_was_due_in_an_earlier_iteration_is_over():
    faults = Faults((KILL, LOSS))
    assert [faults.since(step).entries for step in (0, 7, 8)] == [(KILL, LOSS), (KILL, LOSS), (LOSS,)]


def test_what_cannot_be_written_or_read_is_a_warning(tmp_path):
    warnings = []
    file = FiredFile(tmp_path / "none" / "fired.jsonl", warnings.append)
    file.write(KILL, 20)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "fired.jsonl").write_text("half a li")
    assert file.unfired(Faults((KILL,))) == ()
    (warning,) = warnings
    assert "fired.jsonl cannot be written: No such file or directory" in warning


def test_files_that_cannot_be_used_are_named(tmp_path):
    assert load_fired(tmp_path / "none") == ()
    with pytest.raises(UserError, match="this is a folder"):
        load_fired(tmp_path)
    path = tmp_path / "other.jsonl"
    path.write_text('{"time": "noon"}\n')
    with pytest.raises(FaultError, match=r"other.jsonl: this is no list of fired faults: .*\$"):
        load_fired(path)
