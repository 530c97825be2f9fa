"""Memory that goes bad."""


def flip(segment, place):
    """Change one bit of a segment."""
    found = bytearray(1)
    segment.read(place, memoryview(found))
    found[0] ^= 1
    segment.write(place, memoryview(found))
