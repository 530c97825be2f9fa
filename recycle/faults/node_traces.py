"""Traces of nodes, in each form that they are known in: which node was down, and when.

Time begins with the trace: where it counts live nodes, with its first line; where it is of outages alone, at 0, or with
the first of them where times are dates since 1970.
"""

import csv
import io
import re
from collections import deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from recycle.digits import parse_number, parse_whole
from recycle.faults.errors import FaultError
from recycle.files import from_json

UNITS = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0, "ms": 0.001}
FORMS = "node,start_days,end_days; hours,live; or JSON with node_id, event_time and event_type"
Fields: TypeAlias = tuple[int, list[str]]

DATE, LATEST = 3e8, 1e10
"""Seconds from which on a time is a date, of 1979 or later, and from which on it is none, with that unit.

No cluster waits nine years for its first failure.
"""

DECIMALS = 5
"""Of seconds: a date in days is not more exact."""

MOST_NODES = 1_000_000

_FACT = re.compile(r'[ \t"]*#+\s*(nodes|servers|days|[\w-]+-per-node)(?![\w-])(\s*[:=])?', re.ASCII | re.IGNORECASE)
_SEVERAL = re.compile(r"[][{},;\s]")


class NamedOutage(NamedTuple):
    """One node, or server, that was down.

    Attributes:
        line: its number in the file.
        name: of the node or server.
        start: seconds from the begin of the trace.
        end: likewise; None if it did not come back.
    """

    line: int
    name: str
    start: float
    end: float | None


class NodeTrace(NamedTuple):
    """What a trace says.

    Attributes:
        names: of all nodes or servers that it knows.
        outages: in the order of the file; those of a name may overlap.
        end: of what it says last, in seconds from its begin.
        what: each outage is in the file: a line, or an entry in JSON.
        is_whole: whether it knows all nodes that there are.
    """

    names: frozenset[str]
    outages: Sequence[NamedOutage]
    end: float
    what: str = "line"
    is_whole: bool = False


class FaultEvent(msgspec.Struct, frozen=True):
    """An entry of the trace of a language-model cluster in JSON: times in days."""

    node_id: str
    event_time: float
    event_type: Literal["fault_start", "fault_end"]


def read_nodes(content: bytes) -> NodeTrace | None:
    """Read a trace of nodes; lines that start with ``#`` are comments.

    Returns:
        None if it has none of the forms of nodes' traces.

    Raises:
        FaultError: a line cannot be read or makes no sense; the message has its number, and the remedy.
    """
    if content.lstrip()[:1] in (b"[", b"{"):
        return _of_events(content)
    lines = csv_lines(content)
    if not lines:
        return None
    number, header = lines[0][0], [name.lower() for name in lines[0][1]]
    if header[0] == "node":
        return _of_intervals(number, header, lines[1:])
    if header[1:] == ["live"]:
        return _of_counts(_unit(number, header[0]), lines[1:])
    return None


def csv_lines(content: bytes) -> list[Fields]:
    """The lines of a CSV file with their numbers, without comments and empty ones.

    Raises:
        FaultError: it is no such file.
    """
    lines: list[Fields] = []
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        lines.extend((reader.line_num, [field.strip() for field in fields]) for fields in reader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FaultError(f"line {line}: this is no text in UTF-8; save it as such: {error}") from error
    except csv.Error as error:
        line = reader.line_num
        raise FaultError(f"line {line}: this is no CSV file: {error}; write quotes in pairs, or none") from error
    return [(number, fields) for number, fields in lines if any(fields) and not fields[0].startswith("#")]


def comments(content: bytes) -> dict[str, float]:
    """What a trace says of itself in comments such as ``# nodes 400``, ``# days: 20`` or ``# stages-per-node 2``.

    Raises:
        FaultError: what should be a number is none.
    """
    facts: dict[str, float] = {}
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        said = _FACT.match(line)
        if said is None:
            continue
        # Table calculators put comments into quotes, and commas behind.
        text = line[said.end() :].strip(' \t",')
        if not (said[2] or any(map(str.isdigit, text))):
            continue  # words that begin so by chance, as in "# nodes failed"
        name = said[1].lower()
        name = "nodes" if name == "servers" else name
        try:
            value = parse_number(text)
        except ValueError as error:
            raise FaultError(f"line {number}: # {name} {text}: give a number alone, as in # {name} 20") from error
        if facts.setdefault(name, value) != value:
            raise FaultError(f"line {number}: # {name} {text}: a line above says {facts[name]:g}; leave one out")
    return facts


def natural(name: str) -> list[tuple[int, str]]:
    """What names of nodes are ordered by: numbers in them by what they count, however many digits they have."""
    parts = [(digits.lstrip("0"), text) for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name)]
    return [(-1, text) if text else (len(digits), digits) for digits, text in parts]


def _of_intervals(header_line: int, header: Sequence[str], lines: Iterable[Fields]) -> NodeTrace:
    """A fault a line: node, start and end; an end that is missing is a fault that lasts."""
    unit = header[1].removeprefix("start_") if len(header) > 1 else ""
    if header != ["node", f"start_{unit}", f"end_{unit}"]:
        raise FaultError(f"line {header_line}: columns {','.join(header)}: write node,start_days,end_days")
    _unit(header_line, unit)
    outages = []
    start = 0.0
    for number, fields in lines:
        if len(fields) != 3:
            raise FaultError(f"line {number}: {len(fields)} values for 3 columns; write {','.join(header)}")
        start = _time(number, fields[1], start, unit)
        end = _time(number, fields[2], 0.0, unit) if fields[2] else None
        if end is not None and end < start:
            raise FaultError(f"line {number}: its end {fields[2]} is before its start {fields[1]}; correct one of them")
        outages.append(NamedOutage(number, _node(number, fields[0]), start, end))
    return _from_begin(outages, "line")


def _of_events(content: bytes) -> NodeTrace:
    try:
        entries = from_json(content, list[FaultEvent])
    except msgspec.DecodeError as error:
        raise FaultError(f"{error}: a JSON trace is a list of node_id, event_time and event_type") from error
    outages: list[NamedOutage] = []
    lasting: dict[str, deque[int]] = {}
    latest = 0.0
    for number, entry in enumerate(entries, 1):
        latest = _time(number, str(entry.event_time), latest, "days", "entry")
        name = _node(number, entry.node_id, "entry")
        began = lasting.setdefault(name, deque())
        if entry.event_type == "fault_start":
            began.append(len(outages))
            outages.append(NamedOutage(number, name, latest, None))
        elif began:
            place = began.popleft()
            outages[place] = outages[place]._replace(end=latest)
        else:
            raise FaultError(f"entry {number}: a repair of {name}, which has no fault; add its fault, or leave it out")
    return _from_begin(outages, "entry")


def _from_begin(outages: Sequence[NamedOutage], what: str) -> NodeTrace:
    """A trace of outages alone."""
    begin = outages[0].start if outages and outages[0].start >= DATE else 0.0

    def since(time: float) -> float:
        return round(time - begin, DECIMALS)

    moved = [
        each._replace(start=since(each.start), end=None if each.end is None else since(each.end)) for each in outages
    ]
    end = max((each.start if each.end is None else each.end for each in moved), default=0.0)
    return NodeTrace(frozenset(each.name for each in moved), moved, end, what)


def _of_counts(unit: str, lines: Sequence[Fields]) -> NodeTrace:
    """A trace that knows only how many are alive: which of them die is drawn, the same ones each time."""
    random = Random(0)
    live: list[str] = []
    gone: deque[NamedOutage] = deque()
    outages: list[NamedOutage] = []
    begin: float | None = None
    latest = time = 0.0
    for number, fields in lines:
        try:
            written, count = fields[0], parse_whole(",".join(fields[1:]))
        except ValueError as error:
            raise FaultError(f"line {number}: {', '.join(fields)}: write a time and the count of live nodes") from error
        if count > MOST_NODES:
            raise FaultError(f"line {number}: {count} live nodes: {MOST_NODES} at most")
        latest = _time(number, written, latest, unit)
        begin = latest if begin is None else begin
        time = round(latest - begin, DECIMALS)
        while len(live) > count:
            gone.append(NamedOutage(number, live.pop(random.randrange(len(live))), time, None))
        while len(live) < count:
            name = f"node{len(live) + 1}"
            if gone:
                back = gone.popleft()
                name = back.name
                outages.append(back._replace(end=time))
            elif time:
                # A node that is alive for the first time was missing before.
                outages.append(NamedOutage(number, name, 0.0, time))
            live.append(name)
    names = frozenset((*live, *(each.name for each in gone)))
    return NodeTrace(names, (*outages, *gone), time, is_whole=True)


def _unit(number: int, name: str) -> str:
    if name not in UNITS:
        raise FaultError(f"line {number}: unknown column {name!r}; name its unit: {', '.join(UNITS)}")
    return name


def _node(number: int, name: str, what: str = "line") -> str:
    """A single node's name."""
    if not name:
        raise FaultError(f"{what} {number}: the name of the node is missing")
    if re.fullmatch("w[0-9]+_[0-9]+", name):
        raise FaultError(f"{what} {number}: {name!r} is no server's name; write {name.upper()}")
    if _SEVERAL.search(name):
        raise FaultError(f"{what} {number}: {name!r} is no single name: write each node's, without spaces and brackets")
    return name


def _time(number: int, text: str, latest: float, unit: str, what: str = "line") -> float:
    """A time in seconds, not before the latest one."""
    try:
        time = parse_number(text) * UNITS[unit]
    except ValueError as error:
        raise FaultError(f"{what} {number}: time is {text!r}: write a number of {unit}, such as 1234.5") from error
    if time < 0:
        raise FaultError(f"{what} {number}: time is {text}: give a number from 0 on")
    if time >= LATEST:
        raise FaultError(f"{what} {number}: time is {text} {unit}, which is more than 300 years: correct the unit")
    if time < latest:
        raise FaultError(f"{what} {number}: its time {text} is before {latest / UNITS[unit]:g}; sort by time")
    return time
