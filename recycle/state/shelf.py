"""A keeper's memory: parts of versions, each there as a whole or not at all, within a bound."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

from recycle.state.errors import Refused
from recycle.state.ladder import StatePart, find_outdated, is_late
from recycle.state.segment import Segment


class Content(NamedTuple):
    """What was put under a part's name.

    Attributes:
        head: what its owner needs to know to read it.
        segment: the memory that it is in.
        checksum: of head and memory, as whoever put it has computed it.
    """

    head: bytes
    segment: Segment
    checksum: int


class Shelf:
    """What a keeper holds; for any number of threads.

    Args:
        limit: the most bytes that it may hold.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[StatePart, Content] = {}
        self._coming: dict[int, int] = {}
        self._spare: list[Segment] = []
        self._written = 0

    def allow(self, limit: int) -> None:
        """It may hold so many bytes, where that is more than before."""
        with self._lock:
            self._limit = max(self._limit, limit)

    def make_room(self, part: StatePart, size: int) -> Segment:
        """Memory for a part that comes; what nobody can need any more makes room for it.

        Args:
            part: which.
            size: in bytes.

        Raises:
            Refused: it is of a view that is over, would be more than this keeper may hold, or the system has no room.
        """
        with self._lock:
            if is_late(self._held, part):
                raise Refused(f"{part} is of a view that is over")
            self._spare += [self._held.pop(each).segment for each in find_outdated(self._held, part, self._written)]
            taken = sum(each.segment.size for each in self._held.values()) + sum(self._coming.values())
            if taken + size > self._limit:
                raise Refused(f"{part} takes {size} bytes, and of {self._limit} that may be kept {taken} are taken")
            # Memory that was in use already is much quicker to fill; by who had it before, if others have as much.
            found = next((each for each in reversed(self._spare) if each.size == size), None)
            self._spare = [each for each in self._spare if each is not found]
            while self._spare and taken + size + sum(each.size for each in self._spare) > self._limit:
                self._spare.pop(0).give_back()
            try:
                segment = Segment.make(size) if found is None else found
            except OSError as error:
                raise Refused(f"{part} takes {size} bytes, which the system does not give: {error.strerror}") from error
            self._coming[id(segment)] = size
            return segment

    def place(self, part: StatePart, content: Content) -> None:
        """A part has come as a whole.

        Raises:
            Refused: it is of a view that is over by now, and forgotten.
        """
        with self._lock:
            # At once, so that it is never counted twice.
            del self._coming[id(content.segment)]
            late = is_late(self._held, part)
            gone = content if late else self._held.get(part)
            if not late:
                self._held[part] = content
        if gone is not None:
            gone.segment.give_back()
        if late:
            raise Refused(f"{part} is of a view that is over")

    def forget(self, segment: Segment) -> None:
        """A part will not come. Its trainer may have it mapped, so that its memory is used for no other."""
        with self._lock:
            del self._coming[id(segment)]
        segment.give_back()

    def release(self, version: int) -> None:
        """Versions up to this one need not be written to disk any more."""
        with self._lock:
            self._written = max(self._written, version)

    def drop(self, part: StatePart) -> None:
        """A part is not as it was put."""
        with self._lock:
            content = self._held.pop(part, None)
            if content is not None:
                content.segment.give_back()

    def find(self, part: StatePart) -> Content | None:
        """A part, if it is there."""
        with self._lock:
            return self._held.get(part)

    @property
    def sizes(self) -> Mapping[StatePart, int]:
        """What is there as a whole, and how many bytes it has."""
        with self._lock:
            return {part: each.segment.size for part, each in self._held.items()}
