import os

import pytest

from recycle.state.errors import KeeperLost
from recycle.state.segment import Segment


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
