import stat
from pathlib import Path

import msgspec
import pytest

from recycle.control.board.joinfile import JoinFile, new_token
from recycle.control.board.run_folder import identity
from recycle.errors import UserError


def test_a_join_file_is_read_back_and_private(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    written = JoinFile("127.0.0.1", 1234, 5678, new_token())
    written.write(path)
    assert JoinFile.read(path) == msgspec.structs.replace(written, folder=identity(tmp_path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_run_has_its_own_token() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 64


@pytest.mark.parametrize("content", [b"", b"{}", b'{"host": "h", "port": "x", "token": "t"}', b"\xff\xfe"])
def test_another_file_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "join.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not the join file of a run") as caught:
        JoinFile.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        JoinFile.read(tmp_path / "none")
