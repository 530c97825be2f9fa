"""Draw the rooms of the package and who imports whom: ``python scripts/make_map.py``.

The picture is in docs/internals/architecture.md.

A room is a folder, or the modules of a folder that has rooms of its own. An arrow that follows from two others is left
out, and every arrow runs downwards: lint-imports holds that.
"""

from collections.abc import Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from xml.etree import ElementTree

import grimp

from recycle.files import write_whole

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "rooms.svg"
DIVIDED = ("recycle.runtime", "recycle.megatron", "recycle.planner")
"""Folders whose folders are rooms of their own."""
FOUNDATION = "job"
"""What the modules directly in the package are called together: the job, and how files and errors are handled."""
FAMILIES = ("planner", "megatron", "cli", "runtime", "state", "control", "faults", "record", "view")
"""From left to right on a floor."""
WIDTH, HEIGHT, GAP, FLOOR, MARGIN, LINE = 196, 78, 22, 56, 24, 13
INK, PAPER, EDGE, SHARED = "#1f2933", "#ffffff", "#8795a1", "#eef2f6"

Arrows = Mapping[str, frozenset[str]]


def room_of(module: str) -> str:
    """The room of a module, by its dotted name without the package's."""
    parts = module.split(".")
    if len(parts) < 3 and not _is_package(module):
        return FOUNDATION
    whole = ".".join(parts[:2])
    if whole in DIVIDED and len(parts) > 2 and _is_package(".".join(parts[:3])):
        return ".".join(parts[1:3])
    return parts[1]


def find_arrows() -> Arrows:
    """Which rooms each room imports from."""
    graph = grimp.build_graph("recycle")
    arrows: dict[str, set[str]] = {}
    for module in graph.modules - {"recycle", "recycle.__main__"}:
        found = arrows.setdefault(room_of(module), set())
        found.update(room_of(each) for each in graph.find_modules_directly_imported_by(module) if each != "recycle")
    return {room: frozenset(others - {room}) for room, others in arrows.items()}


def reduced(arrows: Arrows) -> Arrows:
    """The arrows without those that follow from two others; circles stay as they are."""
    reach: dict[str, set[str]] = {}
    for room in TopologicalSorter(arrows).static_order():
        reach[room] = set(arrows[room]).union(*(reach[each] for each in arrows[room]))
    return {
        room: frozenset(each for each in others if not any(each in reach[other] for other in others - {each}))
        for room, others in arrows.items()
    }


def floors(arrows: Arrows) -> list[list[str]]:
    """The rooms from the top floor down: each stands one floor above the highest that it imports from."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        level[room] = 1 + max((level[each] for each in arrows[room]), default=-1)
    return [
        sorted((room for room in level if level[room] == floor), key=_side)
        for floor in range(max(level.values()), -1, -1)
    ]


def draw(arrows: Arrows) -> str:
    """The picture as SVG; the same text for the same rooms."""
    rows = floors(arrows)
    most = max(map(len, rows))
    width = 2 * MARGIN + most * WIDTH + (most - 1) * GAP
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * FLOOR
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "font-family": "sans-serif",
            "role": "img",
        },
    )
    ElementTree.SubElement(svg, "title").text = "The rooms of recycle, and who imports from whom"
    ElementTree.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": PAPER})
    marker = ElementTree.SubElement(
        ElementTree.SubElement(svg, "defs"),
        "marker",
        {"id": "tip", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "markerWidth": "7", "markerHeight": "7"}
        | {"orient": "auto"},
    )
    ElementTree.SubElement(marker, "path", {"d": "M0 0 L8 4 L0 8 z", "fill": EDGE})
    place: dict[str, tuple[float, float]] = {}
    for floor, row in enumerate(rows):
        left = (width - len(row) * WIDTH - (len(row) - 1) * GAP) / 2
        for number, room in enumerate(row):
            place[room] = (left + number * (WIDTH + GAP), MARGIN + floor * (HEIGHT + FLOOR))
    for room, others in sorted(reduced(arrows).items()):
        for number, other in enumerate(sorted(others, key=lambda each: place[each]), 1):
            _arrow(svg, place[room], place[other], number / (len(others) + 1))
    for room, (x, y) in sorted(place.items()):
        _box(svg, room, x, y)
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _arrow(svg: ElementTree.Element, start: tuple[float, float], end: tuple[float, float], share: float) -> None:
    x, y = start[0] + share * WIDTH, start[1] + HEIGHT
    to, below = end[0] + WIDTH / 2, end[1]
    middle = (y + below) / 2
    path = f"M{x:.0f} {y:.0f} C{x:.0f} {middle:.0f} {to:.0f} {middle:.0f} {to:.0f} {below:.0f}"
    ElementTree.SubElement(
        svg, "path", {"d": path, "fill": "none", "stroke": EDGE, "stroke-width": "1.3", "marker-end": "url(#tip)"}
    )


def _box(svg: ElementTree.Element, room: str, x: float, y: float) -> None:
    box = {"x": f"{x:.0f}", "y": f"{y:.0f}", "width": str(WIDTH), "height": str(HEIGHT), "rx": "6"}
    ElementTree.SubElement(svg, "rect", box | {"fill": SHARED, "stroke": INK})
    name = ElementTree.SubElement(
        svg, "text", {"x": f"{x + 9:.0f}", "y": f"{y + 18:.0f}", "font-size": "13", "font-weight": "bold", "fill": INK}
    )
    name.text = room.replace(".", "/")
    for number, line in enumerate(wrap(_purpose(room), 29)[:4]):
        text = ElementTree.SubElement(
            svg, "text", {"x": f"{x + 9:.0f}", "y": f"{y + 33 + number * LINE:.0f}", "font-size": "10.5", "fill": INK}
        )
        text.text = line


def _side(room: str) -> tuple[int, str]:
    """By which rooms of a floor are ordered."""
    family = room.split(".")[0]
    return (FAMILIES.index(family) if family in FAMILIES else len(FAMILIES), room)


def _purpose(room: str) -> str:
    """The first sentence of what a room says of itself."""
    if room == FOUNDATION:
        return "The job, its file, and how files, durations and errors are handled"
    text = import_module(f"recycle.{room}").__doc__ or ""
    return text.split(". ")[0].strip().rstrip(".")


def _is_package(module: str) -> bool:
    return (Path(__file__).parent.parent / module.replace(".", "/")).is_dir()


if __name__ == "__main__":
    write_whole(PICTURE, draw(find_arrows()).encode())
    print(PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE)
