"""Sources: from which server another one copies a chunk that it is to hold. Pure."""

from collections.abc import Iterable

from recycle.job import Server


class Sources:
    """Chooses the sources of one transition, copy by copy.

    The source is one of the target's own pipeline, if any of it holds what is copied: it is the one that gives it away,
    or sends it nowhere else. Of those, and of all others, it is the one that has the least to send so far.

    Args:
        servers: that may send.
    """

    def __init__(self, servers: Iterable[Server]) -> None:
        self._sent = dict.fromkeys(servers, 0)

    def choose(self, holders: Iterable[Server], target: Server) -> Server:
        """Who sends the next copy; there has to be somebody.

        Args:
            holders: of what is copied.
            target: who is to get it.
        """
        return min(holders, key=lambda each: (each.pipeline != target.pipeline, self._sent[each], each))

    def add(self, source: Server, size: int) -> None:
        """A source has so much more to send."""
        self._sent[source] += size
