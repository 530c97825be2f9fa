"""Connections that are closed when nobody has any more what holds them."""

from collections.abc import Callable
from typing import TypeVar
from weakref import finalize

_T = TypeVar("_T")


def close_with(owner: _T, close: Callable[[], object]) -> "finalize[[], _T]":
    """Close a connection when its owner is gone, or when the result is called.

    Not by ``__del__``: of objects that hold each other, as an error does all that its calls knew, Python ends any
    first, and a socket that comes before its owner warns that nobody has closed it. This comes before all of them.

    Args:
        owner: what nobody else has the connection of.
        close: closes the connection, which must not refer to its owner.
    """
    closing = finalize(owner, close)
    # Threads that still wait at the end of the process end with it.
    closing.atexit = False
    return closing
