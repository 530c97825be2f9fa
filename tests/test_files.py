"""Reading files line by line, from either end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle import files
from recycle.errors import UserError
from recycle.files import read_backwards, read_bytes, read_lines


@pytest.fixture
def small(monkeypatch):
    """Everything is too large to be read at once, but a line of up to 8 bytes."""
    monkeypatch.setattr(files, "_PIECE", 3)
    monkeypatch.setattr(files, "LONGEST_LINE", 10)
    monkeypatch.setattr(files, "LARGEST", 20)


@given(lines=st.lists(st.text("ab\r{", max_size=8), max_size=12), rest=st.text("ab", max_size=8))
def test_the_lines_of_a_file_come_from_either_end_however_long_it_is(tmp_path_factory, lines, rest):
    path = tmp_path_factory.mktemp("files") / "lines"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + rest.encode())
    expected = [line.encode() for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PIECE", 3)
        patch.setattr(files, "LONGEST_LINE", 10)
        patch.setattr(files, "LARGEST", 20)
        assert list(read_lines(path)) == expected
        assert list(read_backwards(path)) == expected[::-1]


@pytest.mark.parametrize("content", [b"a\n" + b"0" * 30, b"0" * 30 + b"\nb\n", b"0" * 30])
@pytest.mark.parametrize("read", [read_lines, read_backwards])
def test_a_line_without_an_end_takes_no_memory(tmp_path, small, read, content):
    (tmp_path / "zeros").write_bytes(content)
    with pytest.raises(UserError, match=r"zeros: it has a line of 10 bytes or more"):
        list(read(tmp_path / "zeros"))


@pytest.mark.parametrize("read", [read_lines, read_backwards, lambda path: [read_bytes(path)]])
def test_what_cannot_be_read_is_named(tmp_path, read):
    with pytest.raises(UserError, match="this is a folder, and a file is needed"):
        list(read(tmp_path))
    with pytest.raises(UserError, match="nothing: cannot be read: No such file"):
        list(read(tmp_path / "nothing"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_lines_begin_behind_a_byte_order_mark(tmp_path, encoding):
    (tmp_path / "text").write_bytes("µ\nn\nrest".encode(encoding))
    assert list(read_lines(tmp_path / "text")) == ["µ".encode(), b"n"]
