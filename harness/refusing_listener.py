"""A listening socket that has no descriptor for a connection at first."""

import socket


class RefusingListener(socket.socket):
    """Takes the place of a listening socket.

    Args:
        listener: that one.
        refusals: what it raises at first in the place of connections, each of them once.
    """

    def __init__(self, listener: socket.socket, refusals: list[OSError]) -> None:
        super().__init__(listener.family, listener.type, fileno=listener.detach())
        self._refusals = refusals

    def accept(self) -> tuple[socket.socket, object]:
        """See ``socket.accept``."""
        if self._refusals:
            raise self._refusals.pop()
        return super().accept()
