"""The known forms of traces, read into one: who was lost and who came back, and when."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from recycle.faults.errors import FaultError

REMOVE, ADD = "remove", "add"
MILLISECONDS = {"days": 86_400_000.0, "hours": 3_600_000.0, "minutes": 60_000.0, "seconds": 1_000.0, "ms": 1.0}
FORMS = (
    "time,remove|add,node; date,time,live count; hours,live; node,start_days,end_days; or JSON with node_id, "
    "event_time and event_type"
)
CHANGES = ("change", "event")
NAMES = ("server", "node")
Fields: TypeAlias = tuple[int, list[str]]


class TraceRow(NamedTuple):
    """One line of a trace: when, what, and to whom.

    Attributes:
        line: its number in the file.
        time: as it is written; milliseconds in traces of nodes.
        change: ``remove`` or ``add``.
        names: of servers or nodes.
    """

    line: int
    time: str
    change: str
    names: tuple[str, ...]


class FaultEvent(msgspec.Struct, frozen=True):
    """An entry of the trace of a language-model cluster in JSON: times in days."""

    node_id: str
    event_time: float
    event_type: Literal["fault_start", "fault_end"]


def read_rows(content: bytes) -> list[TraceRow]:
    """Read a trace of any known form; lines that start with ``#`` are comments.

    Raises:
        FaultError: a line cannot be read or makes no sense; the message has its number, and the remedy.
    """
    if content.lstrip()[:1] == b"[":
        return _of_events(content)
    lines = _lines(content)
    if not lines:
        return []
    header = lines[0][1]
    if header[0] == "node":
        return _of_intervals(lines)
    if header[-1] == "live":
        return _of_counts(lines[1:], _unit(lines[0], header[0]))
    if header[0].count("-") == 2:
        return _of_dates(lines)
    return _of_changes(lines)


def comments(content: bytes) -> dict[str, float]:
    """What a trace says of itself in comments of the form ``# nodes 400``."""
    facts = {}
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.lstrip("# ").split()
        if line.startswith("#") and len(words) == 2:
            try:
                facts[words[0]] = float(words[1])
            except ValueError:
                continue
    return facts


def _lines(content: bytes) -> list[Fields]:
    try:
        text = content.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, [field.strip() for field in fields]) for fields in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FaultError(f"this is no CSV file: {error}") from error
    return [(number, fields) for number, fields in lines if any(fields) and not fields[0].startswith("#")]


def _of_changes(lines: Sequence[Fields]) -> list[TraceRow]:
    rows: list[TraceRow] = []
    for number, (time, *rest) in lines:
        if time == "time" and not rows:
            _require_columns(number, rest)
            continue
        names = tuple(name for name in rest[1:] if name)
        if len(rest) < 2 or not names:
            raise FaultError(f"line {number}: expected time,remove,name or time,add,name; the known forms are: {FORMS}")
        if rest[0] not in (REMOVE, ADD):
            raise FaultError(f"line {number}: {rest[0]!r} is no change; write remove or add")
        rows.append(TraceRow(number, time, rest[0], names))
    return rows


def _require_columns(number: int, names: Sequence[str]) -> None:
    for name, known in zip(names, (CHANGES, NAMES), strict=False):
        if name not in known:
            raise FaultError(f"line {number}: unknown column {name!r}; write time,change,server or time,change,node")


def _of_intervals(lines: Sequence[Fields]) -> list[TraceRow]:
    """A fault a line: node, start and end; an end that is missing is a fault that lasts."""
    (header_line, header), *rest = lines
    if len(header) != 3 or not header[1].startswith("start_") or header[2] != f"end_{header[1].removeprefix('start_')}":
        raise FaultError(f"line {header_line}: columns {','.join(header)}: write node,start_days,end_days")
    unit = _unit(lines[0], header[1].removeprefix("start_"))
    events = []
    latest = 0.0
    for number, fields in rest:
        if len(fields) != 3:
            raise FaultError(f"line {number}: {len(fields)} values for 3 columns; write {','.join(header)}")
        start = _time(number, fields[1], latest)
        latest = start
        events.append((start, 1, number, fields[0]))
        if fields[2]:
            events.append((_time(number, fields[2], start), -1, number, fields[0]))
    return list(_merged(sorted(events, key=lambda event: event[0]), unit, "line"))


def _of_events(content: bytes) -> list[TraceRow]:
    try:
        entries = msgspec.json.decode(content, type=list[FaultEvent])
    except msgspec.DecodeError as error:
        raise FaultError(f"{error}: a JSON trace is a list of node_id, event_time and event_type") from error
    events = []
    latest = 0.0
    for number, entry in enumerate(entries, 1):
        latest = _time(number, str(entry.event_time), latest, "entry")
        events.append((latest, 1 if entry.event_type == "fault_start" else -1, number, entry.node_id))
    return list(_merged(events, MILLISECONDS["days"], "entry"))


def _merged(events: Iterable[tuple[float, int, int, str]], unit: float, what: str) -> Iterator[TraceRow]:
    """The rows of faults that may overlap: a node is lost at the first and back after the last of them."""
    faults: Counter[str] = Counter()
    for time, change, number, node in events:
        if faults[node] + change < 0:
            raise FaultError(f"{what} {number}: a repair of {node}, which has no fault; add its fault, or leave it out")
        faults[node] += change
        if faults[node] == (change > 0):
            yield TraceRow(number, repr(time * unit), REMOVE if change > 0 else ADD, (node,))


def _of_dates(lines: Sequence[Fields]) -> list[TraceRow]:
    counts: list[Fields] = []
    first: datetime | None = None
    for number, fields in lines:
        try:
            moment = datetime.fromisoformat(f"{fields[0]} {fields[1]}")
        except (ValueError, IndexError) as error:
            raise FaultError(f"line {number}: {', '.join(fields)}: write date, time, live count") from error
        first = first or moment
        counts.append((number, [str((moment - first).total_seconds()), *fields[2:]]))
    return _of_counts(counts, MILLISECONDS["seconds"])


def _of_counts(lines: Sequence[Fields], unit: float) -> list[TraceRow]:
    """A trace that knows only how many are alive: which of them die is drawn, the same ones each time."""
    random = Random(0)
    live: list[str] = []
    gone: list[str] = []
    rows = []
    latest = 0.0
    for number, fields in lines:
        if len(fields) != 2 or not fields[1].isdigit():
            raise FaultError(f"line {number}: {', '.join(fields)}: write a time and the count of live nodes")
        latest = _time(number, fields[0], latest)
        time, count = repr(latest * unit), int(fields[1])
        if lost := [live.pop(random.randrange(len(live))) for _ in range(len(live) - count)]:
            gone += lost
            rows.append(TraceRow(number, time, REMOVE, tuple(lost)))
        if count > len(live):
            back, gone = gone[: count - len(live)], gone[count - len(live) :]
            back += [f"node{len(live) + len(gone) + place + 1}" for place in range(len(back), count - len(live))]
            live += back
            rows.append(TraceRow(number, time, ADD, tuple(back)))
    return rows


def _unit(header: Fields, name: str) -> float:
    if name not in MILLISECONDS:
        raise FaultError(f"line {header[0]}: unknown column {name!r}; name its unit: {', '.join(MILLISECONDS)}")
    return MILLISECONDS[name]


def _time(number: int, text: str, latest: float, what: str = "line") -> float:
    try:
        time = float(text)
    except ValueError as error:
        raise FaultError(f"{what} {number}: time is {text!r}: write a number") from error
    if not 0 <= time < 1e12:
        raise FaultError(f"{what} {number}: time is {text}: give a number from 0 on")
    if time < latest:
        raise FaultError(f"{what} {number}: its time {text} is before {latest:g}; sort the lines by time")
    return time
