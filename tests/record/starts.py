"""Recordings of a run that was started several times in its folder, on machines with clocks of their own."""

from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from harness.recordings import encode_lines
from recycle.record.recording import (
    FORMAT,
    VERSION,
    DeathLine,
    IterationLine,
    ProcessLine,
    RunLine,
    SpanLine,
    ViewLine,
)

SERVERS = ("W0_0", "W1_0", "W2_0")
AHEAD = {"W0_0": 0.0, "W1_0": 7e6, "W2_0": -3e6}
"""Microseconds by which the clock of each server is ahead of the launcher's."""

HEAD = RunLine(FORMAT, VERSION, "a run", "us", "measured")


class Clock(NamedTuple):
    """When it showed 0, in seconds since 1970."""

    name: str
    zero: float


# Seconds and their parts that floats hold exactly.
CLOCKS = [Clock("a", 1_700_000_000.0), Clock("b", 1_690_000_000.0), Clock("c", 1_701_000_000.5)]

STARTS = st.lists(
    st.tuples(
        st.sampled_from(CLOCKS),
        st.integers(0, 4),
        st.lists(
            st.one_of(
                st.tuples(st.just("train"), st.integers(1, 3)),
                st.tuples(st.sampled_from(["die", "return"]), st.sampled_from(SERVERS[1:])),
                st.tuples(st.just("go back"), st.integers(1, 3)),
            ),
            max_size=6,
        ),
    ),
    min_size=1,
    max_size=4,
)
"""Of each start its clock, how many iterations it goes back, and what happens in it."""


class Starts:
    """Writes such recordings, and notes what is true of them.

    Attributes:
        pids: of the newest process of each server.
        deaths: how many servers died.
        again: of each view but the first, how many iterations are made again.
        lives: of each server that came back, in order, with the number of its life.
        views: when each began, in seconds since 1970.
        dead: the servers that are dead now.
        done: which iteration each server finished last, from 1.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "events").mkdir(parents=True)
        self._folder = folder
        self._now = 1_702_000_000.0
        self._clock = CLOCKS[0]
        self._made = 0
        self._life: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.deaths = 0
        self.again: list[int] = []
        self.lives: list[tuple[str, int]] = []
        self.views: list[float] = []
        self.dead: set[str] = set()
        self.done = dict.fromkeys(SERVERS, 0)

    def begin(self, clock: Clock, back: int) -> None:
        """The run is started, on the newest checkpoint, with all servers in their first lives."""
        self._clock, self.dead = clock, set()
        for server in SERVERS:
            self._process(server, 0)
        self._view(back, "checkpoint", again=0)

    def act(self, kind: str, what: int | str) -> None:
        """Something happens, where it can."""
        if kind == "train":
            for _ in range(int(what)):
                self._train()
        elif kind == "go back":
            self._view(int(what), "checkpoint", again=0)
        elif kind == "die" and what not in self.dead:
            self._now += 1.0
            self.dead.add(str(what))
            self.deaths += 1
            death = DeathLine(str(what), self._life[str(what)], 0.0, "was killed", "agent", len(self.views))
            self._write("W0_0", death, time=self._now)
            self._view(0, "memory", again=1)
        elif kind == "return" and what in self.dead:
            self.dead.remove(str(what))
            self._process(str(what), self._life[str(what)] + 1)
            self.lives.append((str(what), self._life[str(what)]))
            self._view(0, "memory", again=0, joined=[str(what)])

    def _process(self, server: str, life: int) -> None:
        self._now += 1.0
        self._life[server] = life
        self.pids[server] = 1 + max(self.pids.values(), default=0)
        name = f"{server}#{life}" if life else server
        zero = self._clock.zero - AHEAD[server] / 1e6
        line = ProcessLine(name, self.pids[server], "host", AHEAD[server], zero, clock=self._clock.name)
        self._write(server, HEAD)
        self._write(server, line, time=self._now)

    def _view(self, back: int, restore: str, *, again: int, joined: list[str] | None = None) -> None:
        self._now += 1.0
        step = max(0, self._made - back)
        if self.views:
            self.again.append(max(self._made - step, again))
        self._made = step
        live = [each for each in SERVERS if each not in self.dead]
        view = ViewLine(len(self.views), 0.0, live, joined or [], step, "because", restore, 3, 1.0, "the catalogue")
        self.views.append(self._now)
        for server in live[:2]:
            self._write(server, view, time=self._now)

    def _train(self) -> None:
        self._now += 1.0
        loss = float(len(self.views) * 100 + self._made)
        for server in SERVERS:
            if server not in self.dead:
                times = {"start": self._now - 0.75, "end": self._now - 0.25}
                self._write(server, SpanLine(server, "compute", f"{server[1]}F0.0", 0.0, 0.0, self._made), **times)
                line = IterationLine(server, self._made, 0.5, [loss], 1, len(self.views) - 1, 0.0)
                self._write(server, line, end=self._now - 0.25)
                self.done[server] = self._made + 1
        self._made += 1

    def _write(self, server: str, line: msgspec.Struct, **times: float) -> None:
        read = {name: (time - self._clock.zero) * 1e6 + AHEAD[server] for name, time in times.items()}
        name = f"{server}#{life}" if (life := self._life[server]) else server
        with (self._folder / "events" / f"{name}.jsonl").open("ab") as file:
            file.write(encode_lines([msgspec.structs.replace(line, **read)]))
