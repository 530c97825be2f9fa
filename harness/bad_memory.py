"""Memory that goes bad."""

from recycle.state.segment import Segment


def flip(segment: Segment, place: int) -> None:
    """Change one bit of a segment."""
    found = bytearray(1)
    segment.read(place, memoryview(found))
    found[0] ^= 1
    segment.write(place, memoryview(found))
