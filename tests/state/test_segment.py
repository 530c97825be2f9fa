import os

import pytest

from recycle.state.errors import KeeperLost
from recycle.state.segment import Segment, Windows


def test_memory_is_shared_by_handle_and_there_until_the_last_has_let_go():
    segment = Segment.make(3000)
    segment.write(1000, memoryview(b"x" * 2000))
    other = Segment(os.dup(segment.handle), 3000)
    segment.close()
    found = bytearray(1001)
    other.read(999, memoryview(found))
    assert bytes(found) == b"\0" + b"x" * 1000
    with pytest.raises(KeeperLost, match="given up"):
        segment.write(0, memoryview(b"y"))
    with pytest.raises(KeeperLost, match="given up"):
        segment.read(0, memoryview(bytearray(1)))
    with pytest.raises(KeeperLost, match="a part ends after 3000 bytes"):
        other.read(2999, memoryview(bytearray(2)))


SIZE = 3 * 4096 + 100


def content(segment):
    found = bytearray(segment.size)
    segment.read(0, memoryview(found))
    return bytes(found)


def handed_over(segment, windows):
    """It as another process has it."""
    other = Segment(os.dup(segment.handle), segment.size)
    other.window = windows.find(other.handle, other.size)
    return other


def test_what_comes_again_is_written_through_the_same_window():
    segment, windows = Segment.make(SIZE), Windows(1)
    first = handed_over(segment, windows)
    assert first.window is None
    first.write(0, memoryview(b"a" * SIZE))
    first.close()
    second = handed_over(segment, windows)
    second.write(4000, memoryview(bytearray(b"b" * 200)))
    # Of memory that cannot be written itself, nothing is known but its content.
    second.write(SIZE - 1, memoryview(b"c"))
    second.close()
    assert content(segment) == b"a" * 4000 + b"b" * 200 + b"a" * (SIZE - 4201) + b"c"
    third = handed_over(segment, windows)
    assert third.window is second.window is not None
    other = Segment.make(SIZE)
    other.write(0, memoryview(b"d"))
    assert handed_over(other, windows).window is not third.window
    assert handed_over(segment, windows).window is not third.window


def test_what_is_given_back_takes_no_room_whoever_looks_at_it():
    segment, windows = Segment.make(SIZE), Windows(1)
    segment.write(0, memoryview(b"a" * SIZE))
    other = handed_over(segment, windows)
    assert other.window is not None
    segment.give_back()
    assert os.fstat(segment.handle).st_blocks == 0
    assert content(segment) == bytes(SIZE)
    Segment.make(0).give_back()
