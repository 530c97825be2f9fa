"""What strangers do at the doors of a run, many at a time."""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from harness.sockets import Listening

Doors = Sequence[Listening]


CLOSED = 2.0
"""Seconds after which a door that takes no connection takes none."""


def hold(doors: Doors, count: int) -> list[socket.socket]:
    """Connect to all of them, so often, and say nothing. A door that takes nobody is tried once."""
    held, shut = [], set()
    for each in [*doors] * count:
        with suppress(OSError):
            try:
                if each not in shut:
                    held.append(each.connect(CLOSED))
            except TimeoutError:
                shut.add(each)
    return held


def talk(doors: Doors, said: bytes) -> None:
    """Say something at all of them, again and again, for as long as this process is there."""

    def talk_to(door: Listening) -> None:
        while True:
            with suppress(OSError), door.connect() as connection:
                connection.sendall(said)
                connection.recv(1000)

    for each in doors:
        threading.Thread(target=talk_to, args=(each,), daemon=True).start()


def dribble(doors: Doors) -> list[socket.socket]:
    """One byte a second at many connections of each."""
    held = hold(doors, 50)

    def go_on() -> None:
        while True:
            for each in held:
                with suppress(OSError):
                    each.send(b"\xff", socket.MSG_DONTWAIT)
            time.sleep(1.0)

    threading.Thread(target=go_on, daemon=True).start()
    return held


FLOODS: Mapping[str, Callable[[Doors], object]] = {
    "idle": lambda doors: hold(doors, 1100),
    "dribble": dribble,
    "lengths": lambda doors: talk(doors, b"\xff" * 200),
    "garbage": lambda doors: talk(doors, os.urandom(100_000)),
}
"""By what they say. What a flood gives has to be kept."""


def hear(doors: Doors, patience: float | None = None) -> dict[Listening, bytes]:
    """What each says to a stranger that says something that proves nothing, until it hangs up.

    Args:
        doors: which.
        patience: seconds after which one that says nothing more is left; None if it has to hang up.
    """
    silent = () if patience is None else (TimeoutError,)
    heard = dict.fromkeys(doors, b"")
    for each in doors:
        with each.connect() as connection, suppress(ConnectionError, *silent):
            if patience is not None:
                connection.settimeout(patience)
            connection.send(b"x" * 48)
            while part := connection.recv(1000):
                heard[each] += part
    return heard
