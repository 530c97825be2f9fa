"""The folder of a run belongs to one that is alive, until its last process has ended. A copy of it does not."""

import errno
import fcntl
import os
import shutil
import signal
import stat

import pytest

from harness.strangers import STRANGER, needs_root
from recycle.control.board import run_folder
from recycle.control.board.joinfile import JOIN_FILE, JoinFile, last_token
from recycle.control.board.run_folder import identity, require_free, shared, taken
from recycle.control.membership.errors import ControlError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(run_folder, "PATIENCE", 0.0)


def process(folder, part):
    """A process that has a part in a run, and a child that outlives it; gives what kills the child."""
    ready, begun = os.pipe()
    leader = os.fork()
    if leader == 0:
        with part(folder):
            child = os.fork()
            if child == 0:
                signal.pause()
            os.write(begun, child.to_bytes(4, "big"))
        os._exit(0)
    child = int.from_bytes(os.read(ready, 4), "big")
    os.waitpid(leader, 0)
    return lambda: os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("part", [taken, shared])
def test_a_folder_is_taken_until_the_last_process_of_its_run_was_killed(tmp_path, monkeypatch, part):
    folder = tmp_path / "run"
    kill = process(folder, part)
    refusal = r"run: a run is alive in it; wait for its end, or give this one another folder with --output"
    with pytest.raises(ControlError, match=refusal), taken(folder):
        pass
    with pytest.raises(ControlError, match=refusal):
        require_free(folder)
    with shared(folder):
        kill()
    monkeypatch.setattr(run_folder, "PATIENCE", 60.0)
    require_free(folder)
    with taken(folder), shared(folder):
        pass
    with taken(folder):
        pass


def test_to_ask_whether_a_folder_is_free_makes_nothing_and_takes_nothing(tmp_path):
    require_free(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    require_free(tmp_path / "run")
    with taken(tmp_path / "run"):
        pass


@pytest.mark.parametrize("part", [taken, shared])
def test_a_folder_is_taken_whichever_of_its_files_are_deleted(tmp_path, part):
    folder = tmp_path / "run"
    with part(folder):
        for file in folder.iterdir():
            file.unlink()
        with pytest.raises(ControlError, match="a run is alive in it"), taken(folder):
            pass
        with shared(folder):
            pass
    with taken(folder):
        pass


def test_a_folder_that_cannot_be_locked_itself_is_taken_by_a_file(tmp_path, monkeypatch):
    """As NFS refuses a lock for writing alone on what was opened for reading."""
    lock = fcntl.flock

    def refusing(handle, operation):
        if stat.S_ISDIR(os.fstat(handle).st_mode) and operation & fcntl.LOCK_EX:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)
    with taken(tmp_path), pytest.raises(ControlError, match="a run is alive in it"), taken(tmp_path):
        pass
    with taken(tmp_path):
        pass


def test_what_another_run_has_is_another_folder(tmp_path):
    with taken(tmp_path / "a"), taken(tmp_path / "b"):
        assert identity(tmp_path / "a") != identity(tmp_path / "b")


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2], ids=["as-new", "with-times"])
def test_a_copy_has_neither_the_lock_nor_the_token_of_its_original(tmp_path, copy):
    folder = tmp_path / "run"
    with taken(folder):
        JoinFile("127.0.0.1", 1, 2, "a secret").write(folder / JOIN_FILE)
        shutil.copytree(folder, tmp_path / "copy", copy_function=copy)
        with taken(tmp_path / "copy"):
            assert last_token(tmp_path / "copy") == ""
    with taken(folder):
        assert last_token(folder) == "a secret"
    folder.rename(tmp_path / "nice-name")
    assert last_token(tmp_path / "nice-name") == "a secret"


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ControlError, match="Not a directory; choose another folder"), taken(tmp_path / "file" / "run"):
        pass


@pytest.mark.parametrize("part", [taken, shared])
def test_a_folder_that_all_may_write_to_is_refused_and_one_of_a_group_is_not(tmp_path, part):
    tmp_path.chmod(0o775)
    with part(tmp_path):
        pass
    tmp_path.chmod(0o777)
    with pytest.raises(ControlError, match=r"every user of this machine may write to it.*chmod o-w"), part(tmp_path):
        pass


@needs_root
@pytest.mark.parametrize("part", [taken, shared])
def test_a_folder_of_another_user_is_refused_unless_its_server_knows_this_one_as_that(tmp_path, part, monkeypatch):
    os.chown(tmp_path, STRANGER, STRANGER)
    with pytest.raises(ControlError, match="it belongs to another user"), part(tmp_path):
        pass
    # As where a server of files takes root for nobody.
    monkeypatch.setattr(run_folder, "_owner_of_new", lambda _: STRANGER)
    with part(tmp_path):
        pass
