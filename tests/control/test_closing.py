import gc
import socket
import warnings

from recycle.control.store.closing import close_with


class Owner:
    """Holds a connection, and itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.itself = self
        close_with(self, connection.close)


def test_a_connection_is_closed_with_who_holds_it_even_in_a_ring():
    """Without that, sockets older than their owners are ended first, and warn."""
    here, there = socket.socketpair()
    with there, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        owner = Owner(here)
        del here, owner
        gc.collect()
        assert there.recv(1) == b""
    assert not said


def test_it_is_closed_once():
    here, there = socket.socketpair()
    with there:
        owner = Owner(here)
        close = close_with(owner, here.close)
        close()
        assert here.fileno() == -1
        assert not close.alive
        close()
