"""The views that are files: an option of ``recycle show`` for each.

To add one, write it in a file of its own and enter it in ``FILE_VIEWS``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from recycle.view import figure, html, svg, trace
from recycle.view.panel import Panel


class FileView(NamedTuple):
    """A view that is a file.

    Attributes:
        option: of the command line, without dashes.
        help: what the option does.
        endings: that its name may have.
        encode: the content of a file that shows some panels, one below the other; it gets the file's path as well, for
            its ending. A UserError says why there can be none.
        cost: of an instruction that it draws, in words of seconds or megabytes, where that adds up.
    """

    option: str
    help: str
    endings: tuple[str, ...]
    encode: Callable[[Sequence[Panel], Path], bytes]
    cost: tuple[float, str] | None = None


FILE_VIEWS = (
    FileView("svg", "Write a picture.", (".svg",), svg.encode, (2.9e-4, "MB")),
    FileView(
        "figure",
        "Write a picture as PNG or PDF, by the file's ending.",
        tuple(f".{each}" for each in figure.FORMATS),
        figure.encode,
        (1.4e-3, "s of a processor"),
    ),
    FileView("html", "Write a page to explore in a browser.", (".html",), html.encode),
    FileView("trace", "Write a trace for Perfetto or chrome://tracing.", (".json",), trace.encode),
)
