"""The known forms of traces, read into one: who was lost and who came back, and when.

Whatever the form, time begins with the trace: where it says first who is there, at that moment; where it is of outages
alone, at 0, or with the first of them where times are dates since 1970. A node is lost at the first of outages that
overlap and is back after the last.
"""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from recycle.digits import is_number, parse_number, parse_whole
from recycle.errors import JobError
from recycle.faults.errors import FaultError
from recycle.files import from_json
from recycle.job import Server
from recycle.keys import nearest

REMOVE, ADD = "remove", "add"
MILLISECONDS = {"days": 86_400_000.0, "hours": 3_600_000.0, "minutes": 60_000.0, "seconds": 1_000.0, "ms": 1.0}
FORMS = (
    "time,remove|add,node; date,time,live count; hours,live; node,start_days,end_days; or JSON with node_id, "
    "event_time and event_type"
)
CHANGES = ("change", "event")
NAMES = ("server", "node")
Fields: TypeAlias = tuple[int, list[str]]

DATE, LATEST = 3e8 * 1000, 1e10 * 1000
"""Milliseconds from which on a time is a date, of 1979 or later, and from which on it is none, with that unit.

No cluster waits nine years for its first failure.
"""

SECONDS = range(10**9, 10**10)
"""Numbers that are taken for seconds since 1970 where milliseconds are asked for: dates of 2001 or later."""

DECIMALS = 2
"""Of milliseconds: a date in days is not more exact."""

MOST_NODES = 1_000_000

FACTS, PER_NODE = ("days", "nodes"), "-per-node"
"""What a trace says of itself in comments: these, and all that end so."""

MISNAMED = {
    **dict.fromkeys(("servers", "hosts", "machines", "gpus"), FACTS[1]),
    **dict.fromkeys(("weeks", "hours", "minutes", "seconds"), FACTS[0]),
}
"""Names of a trace's size and length that are not read, and those that are."""

_SAID = re.compile(r"#+\s*([\w-]+)(?:(\s*[:=,])\s*|\s+)(\S+)(.*)", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d ([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII | re.IGNORECASE
)
"""What is read alike whatever the release of Python, which reads more each time."""

_LIST = re.compile(r"[][{},;]")


class TraceRow(NamedTuple):
    """One line of a trace: when, what, and to whom.

    Attributes:
        line: its number in the file.
        time: milliseconds from the begin in traces of nodes, and in those of servers as it is written, or in seconds.
        change: ``remove`` or ``add``.
        names: of servers or nodes; none where nothing changes.
    """

    line: int
    time: str
    change: str
    names: tuple[str, ...]


class NodeChange(NamedTuple):
    """A node that is lost, or that is there again or for the first time.

    Attributes:
        time: in milliseconds.
        line: its number in the file.
        change: ``remove`` or ``add``.
        node: its name.
    """

    time: float
    line: int
    change: str
    node: str


class FaultEvent(msgspec.Struct, frozen=True):
    """An entry of the trace of a language-model cluster in JSON: times in days."""

    node_id: str
    event_time: float
    event_type: Literal["fault_start", "fault_end"]


def read_rows(content: bytes) -> list[TraceRow]:
    """Read a trace of any known form; lines that start with ``#`` are comments.

    Raises:
        FaultError: a line cannot be read or makes no sense; the message has its number, and the remedy. Or there is
            none.
    """
    rows = _rows(content)
    if not rows:
        raise FaultError("it is empty: give a trace with at least one failure")
    return rows


def _rows(content: bytes) -> list[TraceRow]:
    if content.startswith(b"PK"):
        raise FaultError("this is an archive or a workbook: unpack it, or save its table as CSV")
    if unit_of(content) == "entry":
        return _timed(_of_events(content))
    lines = _lines(content)
    if not lines:
        return []
    number, header = lines[0]
    if len(header) == 1 and (between := re.search(r"[;\t|]", header[0])):
        raise FaultError(f"line {number}: there is {between[0]!r} between the columns: write commas")
    if not any(map(str.isdigit, "".join(header))):
        header = [name.lower() for name in header]
    if header[0] == "node":
        return _timed(_of_intervals([(number, header), *lines[1:]]))
    if header == ["date", "time", "live"]:
        return _of_dates(lines[1:])
    if header[-1] == "live":
        return _of_counts(lines[1:], _unit((number, header), header[0]))
    if _are_dates(header):
        return _of_dates(lines)
    rows = _of_changes([(number, header), *lines[1:]])
    return rows if _are_of_servers(rows) else _of_nodes(rows)


def _are_dates(fields: Sequence[str]) -> bool:
    """Whether a line begins with a date, or with what is meant as one."""
    return fields[1:2] not in ([REMOVE], [ADD]) and (
        fields[0].count("-") == 2 or any(re.search(r"\d:\d\d", each) for each in fields[:2])
    )


def _are_of_servers(rows: Sequence[TraceRow]) -> bool:
    return any(is_server(name) for row in rows for name in row.names)


def _timed(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """With times in seconds, where they are in milliseconds and of servers."""
    if not _are_of_servers(rows):
        return list(rows)
    return [row._replace(time=repr(float(row.time) / MILLISECONDS["seconds"])) for row in rows]


def unit_of(content: bytes) -> str:
    """What a trace has one of for each change: a line, or an entry in JSON."""
    return "entry" if content.lstrip()[:1] in (b"[", b"{") else "line"


def is_server(name: str) -> bool:
    """Whether a trace's name is that of a server."""
    try:
        Server.parse(name)
    except JobError:
        return False
    return True


def natural(name: str) -> list[tuple[int, str]]:
    """What names of nodes are ordered by: numbers in them by what they count."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def comments(content: bytes) -> dict[str, float]:
    """What a trace says of itself in comments of the form ``# nodes 400``, or ``# nodes: 400``.

    Raises:
        FaultError: what should be a number is none.
    """
    facts: dict[str, float] = {}
    for number, written, text in _said(content):
        name = written.lower()
        if not (name in FACTS or name.endswith(PER_NODE)):
            continue
        try:
            value = parse_number(text)
        except ValueError as error:
            raise FaultError(f"line {number}: # {name} {text}: give a number alone, as in # {name} 20") from error
        if facts.setdefault(name, value) != value:
            raise FaultError(f"line {number}: # {name} {text}: a line above says {facts[name]:g}; leave one out")
    return facts


def _said(content: bytes) -> Iterator[tuple[int, str, str]]:
    """What comments say of a trace: the number of the line, the name, and what should be a number.

    Raises:
        FaultError: a name is misspelt.
    """
    for number, line in enumerate(re.split(r"\r\n|\r|\n", content.decode("utf-8-sig", "replace")), 1):
        if not line.lstrip(' \t"').startswith("#"):
            continue
        # Table calculators put them into quotes, and commas behind.
        said = _SAID.fullmatch(",".join(filter(None, next(csv.reader([line.strip()])))))
        if said is None or not (said[2] or any(map(str.isdigit, said[3]))):
            continue  # words that begin so by chance, as in "# nodes failed"
        name = said[1].lower()
        known = (*FACTS, f"stages{PER_NODE}", f"peers{PER_NODE}")
        is_known = name in (*FACTS, *MISNAMED) or name.endswith(PER_NODE)
        # Of a single day or node a comment may be as well.
        is_fact = is_number(said[3]) and not said[4] and f"{name}s" not in FACTS
        if not is_known and is_fact and (near := nearest(name, known)):
            raise FaultError(f"line {number}: # {said[1]} {said[3]} is not read: write # {near} N, or leave it out")
        yield number, said[1], said[3] + said[4].rstrip()


def refuse_misnamed(content: bytes) -> None:
    """Refuse a comment such as ``# servers 400``, which would be passed over without a word.

    Raises:
        FaultError: a trace has one.
    """
    for number, name, text in _said(content):
        known = MISNAMED.get(name.lower())
        if known is not None and is_number(text):
            raise FaultError(f"line {number}: # {name} {text} is not read: write # {known} N, or leave it out")


def _lines(content: bytes) -> list[Fields]:
    lines: list[Fields] = []
    line = 1
    try:
        text = content.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        for fields in reader:
            if reader.line_num > line and any(re.search(r"[\r\n]", field) for field in fields):
                raise FaultError(f"line {line}: what is in quotes goes on in the next line: write it in one line")
            lines.append((line, [field.strip() for field in fields]))
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FaultError(f"line {line}: this is no text in UTF-8; save it as such: {error}") from error
    except csv.Error as error:
        raise FaultError(f"line {line}: this is no CSV file: {error}; write quotes in pairs, or none") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise FaultError(f"line {line}: there is a byte of 0: this is no text in UTF-8; save it as such")
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
        if not rows and number == lines[0][0] and not any(map(str.isdigit, "".join((time, *rest)))):
            raise FaultError(f"line {number}: unknown columns {','.join((time, *rest))}; the known forms are: {FORMS}")
        if rest[0] not in (REMOVE, ADD):
            raise FaultError(f"line {number}: {rest[0]!r} is no change; write remove or add")
        rows.append(TraceRow(number, time, rest[0], names))
    return rows


def _of_nodes(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """With times in milliseconds from the begin of the trace."""
    changes: list[NodeChange] = []
    latest = 0.0
    for row in rows:
        if row.time[:1].isdecimal() and not is_number(row.time):
            raise FaultError(
                f"line {row.line}: time is {row.time!r}: write a number of milliseconds; for servers, write W0_0 and "
                "the like"
            )
        latest = _time(row.line, row.time, latest, 1.0)
        if not changes and SECONDS.start <= latest < SECONDS.stop:
            raise FaultError(
                f"line {row.line}: time is {row.time}: a trace of nodes has milliseconds, and these look like seconds "
                "since 1970; write milliseconds, or lines 0,add,node above if they are"
            )
        changes += (NodeChange(latest, row.line, row.change, _node(row.line, name)) for name in row.names)
    says_who = bool(changes) and changes[0].change == ADD
    return list(_merged(changes, says_who=says_who))


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
    changes = []
    latest = 0.0
    for number, fields in rest:
        if len(fields) != 3:
            raise FaultError(f"line {number}: {len(fields)} values for 3 columns; write {','.join(header)}")
        latest = _time(number, fields[1], latest, unit)
        node = _node(number, fields[0])
        if fields[2] and _time(number, fields[2], 0.0, unit) < latest:
            raise FaultError(f"line {number}: its end {fields[2]} is before its start {fields[1]}; correct one of them")
        changes.append(NodeChange(latest, number, REMOVE, node))
        if fields[2]:
            changes.append(NodeChange(_time(number, fields[2], latest, unit), number, ADD, node))
    return list(_merged(sorted(changes, key=lambda each: each.time), "line"))


def _of_events(content: bytes) -> list[TraceRow]:
    try:
        entries = from_json(content, list[FaultEvent])
    except msgspec.DecodeError as error:
        raise FaultError(f"{error}: a JSON trace is a list of node_id, event_time and event_type") from error
    changes = []
    latest = 0.0
    for number, entry in enumerate(entries, 1):
        latest = _time(number, str(entry.event_time), latest, MILLISECONDS["days"], "entry")
        change = REMOVE if entry.event_type == "fault_start" else ADD
        changes.append(NodeChange(latest, number, change, _node(number, entry.node_id, "entry")))
    return list(_merged(changes, "entry"))


def _merged(changes: Sequence[NodeChange], what: str = "", *, says_who: bool = False) -> Iterator[TraceRow]:
    """The rows of outages that may overlap, from the begin of the trace on.

    Args:
        changes: by time.
        what: a change is in the file; empty where a node may also be there for the first time.
        says_who: whether the trace says at its begin who is there.
    """
    first = changes[0].time if changes else 0.0
    begin = first if says_who or first >= DATE else 0.0
    outages: Counter[str] = Counter()
    for time, number, change, node in changes:
        if change == REMOVE:
            outages[node] += 1
            news = outages[node] == 1
        elif outages[node]:
            outages[node] -= 1
            news = not outages[node]
        elif what:
            raise FaultError(f"{what} {number}: a repair of {node}, which has no fault; add its fault, or leave it out")
        else:
            news = True
        # What is no news says that the trace goes on.
        yield TraceRow(number, repr(round(time - begin, DECIMALS)), change, (node,) if news else ())


def _of_dates(lines: Sequence[Fields]) -> list[TraceRow]:
    counts: list[Fields] = []
    first: datetime | None = None
    latest: datetime | None = None
    for number, fields in lines:
        moment = _moment(number, fields)
        first = first or moment
        latest = latest or moment
        if (moment.tzinfo is None) is not (first.tzinfo is None):
            raise FaultError(f"line {number}: {', '.join(fields)}: give every line a time zone, or none")
        if moment < latest:
            raise FaultError(
                f"line {number}: its time {', '.join(fields[:2])} is before that of the line above; sort the lines by "
                "time"
            )
        latest = moment
        counts.append((number, [str((moment - first).total_seconds()), *fields[2:]]))
    return _of_counts(counts, MILLISECONDS["seconds"])


def _moment(number: int, fields: Sequence[str]) -> datetime:
    """The date and the time of day that a line begins with."""
    text = " ".join(fields[:2])
    try:
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:  # a month of 28 days, say
        pass
    raise FaultError(
        f"line {number}: {', '.join(fields)}: write date, time, live count, as in 2021-12-31,23:59:59,50, with +01:00 "
        "or the like behind each time for a time zone"
    )


def _of_counts(lines: Sequence[Fields], unit: float) -> list[TraceRow]:
    """A trace that knows only how many are alive: which of them die is drawn, the same ones each time."""
    random = Random(0)
    live: list[str] = []
    gone: list[str] = []
    rows = []
    latest = 0.0
    begin: float | None = None
    for number, fields in lines:
        try:
            written, count = fields[0], parse_whole(fields[1])
        except (IndexError, ValueError) as error:
            raise FaultError(f"line {number}: {', '.join(fields)}: write a time and the count of live nodes") from error
        if len(fields) != 2:
            raise FaultError(f"line {number}: {', '.join(fields)}: write a time and the count of live nodes")
        if count > MOST_NODES:
            raise FaultError(f"line {number}: {count} live nodes: {MOST_NODES} at most")
        latest = _time(number, written, latest, unit)
        begin = latest if begin is None else begin
        time = repr(round(latest - begin, DECIMALS))
        if count == len(live):
            rows.append(TraceRow(number, time, ADD, ()))  # which says that the trace goes on
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


def _node(number: int, name: str, what: str = "line") -> str:
    """A single node's name."""
    name = unicodedata.normalize("NFC", name)
    if not name:
        raise FaultError(f"{what} {number}: the name of the node is missing")
    if not name.isprintable():
        raise FaultError(f"{what} {number}: {name!a} has a letter that is not seen: leave it out")
    if _LIST.search(name):
        raise FaultError(f"{what} {number}: {name} is a list: write each node's name, as scontrol show hostnames does")
    if is_server(server := name.upper()) and server != name:
        raise FaultError(f"{what} {number}: {name} is neither a server nor a node: write {server}, or another name")
    if len(name.split()) > 1:
        raise FaultError(f"{what} {number}: {name} has a space: write one node's name, without spaces")
    return name


def _time(number: int, text: str, latest: float, unit: float, what: str = "line") -> float:
    """A time in milliseconds, not before the latest one."""
    name = next(name for name, size in MILLISECONDS.items() if size == unit)
    try:
        time = parse_number(text) * unit
    except ValueError as error:
        raise FaultError(f"{what} {number}: time is {text!r}: write a number of {name}, such as 1234.5") from error
    if time < 0:
        raise FaultError(f"{what} {number}: time is {text}: give a number from 0 on")
    if time >= LATEST:
        raise FaultError(f"{what} {number}: time is {text} {name}, which is more than 300 years: correct the unit")
    if time < latest:
        raise FaultError(f"{what} {number}: its time {text} is before {latest / unit:g}; sort by time")
    return time
