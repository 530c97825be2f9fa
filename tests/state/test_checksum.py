"""However a part is cut up on its way, it has the same checksum, and another part has another one."""

from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recycle.state import checksum
from recycle.state.checksum import Checksum, cut, cut_chunks, digest_of

PIECES = st.lists(st.binary(max_size=30), max_size=8)


@pytest.fixture
def small(monkeypatch):
    """Blocks and chunks of a few bytes."""
    monkeypatch.setattr(checksum, "BLOCK", 4)
    monkeypatch.setattr(checksum, "CHUNK", 12)


def as_it_comes(head, blocks):
    found = Checksum(head)
    for each in blocks:
        found.add(each)
    return found.value


def chunk_by_chunk(head, pieces):
    found = Checksum(head)
    for chunk in cut_chunks(pieces):
        found.add_digest(digest_of(chunk))
    return found.value


def views(pieces):
    return [memoryview(each) for each in pieces]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PIECES, st.integers(0, 200))
def test_it_does_not_depend_on_the_cuts(small, pieces, place):
    whole = b"".join(pieces)
    one = as_it_comes(b"head", views([whole]))
    assert one == as_it_comes(b"head", views([whole[:place], whole[place:]]))
    blocks = [*cut(views(pieces))]
    assert one == as_it_comes(b"head", chain(*blocks))
    assert all(sum(map(len, block)) == 4 for block in blocks[:-1])
    assert one == chunk_by_chunk(b"head", views(pieces)) == chunk_by_chunk(b"head", views([whole]))
    assert b"".join(bytes(block) for chunk in cut_chunks(views(pieces)) for block in chunk) == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=60), st.data())
def test_it_tells_of_every_change(small, whole, data):
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :]
    expected = chunk_by_chunk(b"head", views([whole]))
    others = [(b"head", changed), (b"heads", whole), (b"head", whole[:-1]), (b"head", whole + b"0")]
    assert expected not in [chunk_by_chunk(head, views([each])) for head, each in others]
