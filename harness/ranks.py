"""What processes find that are forked here."""

from collections.abc import Callable
from typing import Any

import msgspec

from harness.local import LocalProcess, launch


def results_of(count: int, body: Callable[[LocalProcess], object], kind: Any = Any) -> dict[int, Any]:
    """Run a function in processes, and wait for all of them; see ``launch``.

    Args:
        count: how many.
        body: what each of them runs.
        kind: of what it returns, as msgspec reads and writes it.

    Returns:
        What each has returned, by its rank; nothing of one that has ended within.
    """
    found: dict[int, Any] = {}
    launch(
        count,
        lambda each: each.report(msgspec.msgpack.encode(body(each))),
        lambda rank, content: found.update({rank: msgspec.msgpack.decode(content, type=kind)}),
    )
    return found
