"""What a process reports while it runs: to its recording, to the launcher, or to the user's console."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from recycle.job import Server
from recycle.record.best_effort import BestEffort, GrowingFile
from recycle.record.processes import clock_name, numbering
from recycle.record.recorder import UNIT
from recycle.record.recording import (
    FORMAT,
    VERSION,
    AbandonedLine,
    CopyLine,
    DeathLine,
    EndedLine,
    EvaluationLine,
    InstantLine,
    IterationLine,
    Line,
    ProcessLine,
    RecoveryLine,
    RunLine,
    ViewLine,
    moved,
)
from recycle.record.timeline import Span
from recycle.saying import say
from recycle.wording import plural, throughput_text

Event = IterationLine | AbandonedLine | EvaluationLine | DeathLine | ViewLine | RecoveryLine | InstantLine | CopyLine


class EventFile:
    """A process's recording: a JSON line per instruction and event, written while the run goes on.

    Args:
        folder: where the files are; made if it is not there.
        name: of the process: a server's, or the launcher's.
        title: what is run.
        warn: told where lines are left out because they cannot be written.
        ahead: by how many microseconds this machine's clock is ahead of the launcher's.
        clock: the name of the launcher's; empty where that is this machine's.
        iterations: how many the run is to have, if that is known.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        title: str,
        warn: Callable[[str], None],
        ahead: float = 0.0,
        clock: str = "",
        iterations: int | None = None,
    ) -> None:
        head = RunLine(FORMAT, VERSION, title, UNIT, "measured")
        began = time.monotonic()
        identity = name, os.getpid(), socket.gethostname(), ahead, time.time() - began, numbering()
        process = ProcessLine(*identity, began * 1e6, clock or clock_name(), iterations)
        output = BestEffort(f"the recording in {folder}", warn)
        self._file = GrowingFile(folder / f"{name}.jsonl", _encode([head, process]), output, b"\n")
        self._file.add(b"")
        self._name = name

    def write(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Add what was executed and an event; both are on their way to disk when this returns."""
        self._file.add(_encode([*(span.line() for span in spans), event]))

    def close(self) -> None:
        """The process ends: say so, and write no more."""
        self._file.add(_encode([EndedLine(self._name)]))
        self._file.close()


def _encode(lines: Iterable[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


class Reporter(Protocol):
    """Takes the news of a process to those who should have it."""

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Report an event, and what was executed before it."""


class FileReporter:
    """Reports what happens on a server: its recording gets everything, and who watches the run the events.

    Args:
        folder: of the recordings.
        name: of the server.
        title: what is run.
        send: sends an encoded event to who watches.
        ahead: by how many microseconds this machine's clock is ahead of the launcher's.
        clock: the name of the launcher's; empty where that is this machine's.
        iterations: how many the run is to have, if that is known.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        title: str,
        send: Callable[[bytes], None],
        ahead: float = 0.0,
        clock: str = "",
        iterations: int | None = None,
    ) -> None:
        def warn(text: str) -> None:
            self._show(InstantLine("warning", time.monotonic_ns() / 1000, name, text))

        self._send, self._ahead = send, ahead
        self._file = EventFile(folder, name, title, warn, ahead=ahead, clock=clock, iterations=iterations)

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """See Reporter."""
        self._file.write(event, spans)
        self._show(event)

    def close(self) -> None:
        """Record no more."""
        self._file.close()

    def _show(self, event: Event) -> None:
        """Send an event to the launcher, which compares the times of all hosts."""
        self._send(msgspec.json.encode(moved(event, self._ahead)))


class Reporters:
    """Reports to several.

    Args:
        reporters: each of them; nothing is reported where there are none.
    """

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """See Reporter."""
        for each in self._reporters:
            each.tell(event, spans)


class ConsoleReporter:
    """Tells the user of new views and of what went wrong, a line each.

    The first server of a view tells of it. It may die before that: then the first one of the next view tells of both.
    What several servers tell is said once, and again where one of them tells it again.

    Args:
        server: who speaks.
        is_first: whether no other process has said a text yet.
    """

    def __init__(self, server: Server, is_first: Callable[[str], bool]) -> None:
        self._server = str(server)
        self._is_first = is_first
        self._of_others: list[ViewLine] = []
        self._told = Counter[str]()

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """See Reporter."""
        if isinstance(event, ViewLine):
            if event.epoch > 0 and event.servers[0] == self._server:
                self._say_view(event)
            else:
                # What led to an iteration has begun on all servers, and each says that before it begins the iteration.
                self._of_others = [each for each in self._of_others if each.step == event.step]
                self._of_others += [event] if event.epoch > 0 else []
        elif isinstance(event, InstantLine) and event.kind != "standstill":
            self._told[event.text] += 1
            if self._is_first(f"{event.text}, {self._told[event.text]}"):
                say(event.text)

    def _say_view(self, view: ViewLine) -> None:
        before = [each for each in self._of_others if each.step == view.step and self._is_first(_key(each))]
        self._of_others = []
        joined = [name for each in (*before, view) for name in each.joined if name in view.servers]
        back = f", {', '.join(dict.fromkeys(joined))} among them again" if joined else ""
        causes = "; ".join(dict.fromkeys(each.cause for each in (*before, view)))
        throughput = throughput_text(view.throughput, view.baseline)
        say(f"{causes}; training goes on with {plural(len(view.servers), 'server')}{back}, {throughput}")
        # A server that dies just here has its line said again, which is better than never.
        self._is_first(_key(view))


def _key(view: ViewLine) -> str:
    """What stands for the line of a view where it is asked whether that was said."""
    return f"view {view.epoch}"
