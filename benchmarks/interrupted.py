"""Long rows that are interrupted still print what they have."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block and not the program: what comes after it prints what there is."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: what follows is of what was done until then", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
