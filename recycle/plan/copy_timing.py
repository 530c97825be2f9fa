"""The clock of plans that copy state: their times with copies among everything else, and what copies cost.

A SNAP keeps its server busy, as computing does. A piece begins its way over a link when the lists of both ends have
come to it and both ends of the link are free, and what the lists have behind it on that link waits for it. Results take
their latency, as without copies; several may be under way at once, and where they take no time they need no link. A
stage's gradients are reduced when all that its servers send has arrived.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from recycle.holding import costs_on
from recycle.job import Server
from recycle.plan.clock import COMPUTE, Clock, duration, run_clock
from recycle.plan.dependency import other_server_need
from recycle.plan.instruction import Instruction, Op
from recycle.plan.meeting import meeting_order
from recycle.plan.plan import Copies, Plan
from recycle.plan.timing import Update, largest_cycle_mean

NEVER = -(10**15)
"""Long before any time of a plan: when a link was last used that is not used."""


class Moment(NamedTuple):
    """A time, and the resource whose release it goes back to along a longest path."""

    time: int
    origin: int

    def later(self, length: int) -> "Moment":
        """So much after it."""
        return Moment(self.time + length, self.origin)


class PlanTimes(msgspec.Struct, frozen=True):
    """When a plan does what.

    Attributes:
        clock: of all that it computes, copies counted.
        moves: where state is copied, of every SNAP and send, by server and place in its list: start and end.
        delay: by how much the period is longer than without copies.
    """

    clock: Clock
    moves: Mapping[tuple[Server, int], tuple[int, int]]
    delay: int


def plan_times(plan: Plan) -> PlanTimes:
    """The times of a legal plan, and the least period with which they repeat.

    Raises:
        Deadlock: servers wait for each other.
        Standstill: likewise, where state is copied.
    """
    plain = run_clock(plan.job, plan.mode, plan.programs)
    if plan.copies is None:
        return PlanTimes(plain, {}, 0)
    passes = _Passes(plan, plan.copies)
    passes.run(passes.first_release())
    makespan = passes.makespan
    if plan.mode.optimizer == "global":
        barrier = max(each.time for each in passes.ready.values())
        update = {server: passes.update[server.stage] for server in plan.programs}
        passes.updates = {server: (barrier, barrier + length) for server, length in update.items()}
        period = barrier + max(update.values())
    else:
        period = _least_period(passes, plain.period)
    clock = msgspec.structs.replace(
        plain,
        start=passes.start,
        end=passes.end,
        updates={server: (Update(server.stage, *times),) for server, times in passes.updates.items()},
        makespan=makespan,
        period=period,
    )
    return PlanTimes(clock, passes.moves, period - plain.period)


def _least_period(passes: "_Passes", least: int) -> int:
    """The least period, at least so long, at which all that uses a resource is over before its next use.

    Found as in ``staggered_timing``, with links beside servers.
    """
    period, rounds = least, 0
    release = passes.first_release()
    while True:
        over = passes.run(release)
        parents = [each.origin for each in over]
        mean = largest_cycle_mean(parents, lambda place: over[place].time - release[parents[place]])  # noqa: B023 - used at once
        rounds += 1
        if mean > period or rounds > len(release) + 1:
            period, rounds = max(mean, period + 1), 0
            release = passes.first_release()
            continue
        raised = [max(time, each.time - period) for time, each in zip(release, over, strict=True)]
        if raised == release:
            return period
        release = raised


class _Passes:
    """Longest-path passes over a plan with copies, in an order in which its lists can be executed.

    Its resources are the servers, and of each direction of every server's link the last piece and the last result.

    Args:
        plan: a legal one.
        copies: of it.

    Raises:
        Standstill: its lists cannot be executed.
    """

    def __init__(self, plan: Plan, copies: Copies) -> None:
        self._plan = plan
        self._copies = copies
        self._order = list(meeting_order(plan))
        self._lane = {server: place for place, server in enumerate(plan.programs)}
        costs = {server: costs_on(plan.job, server)[server.stage] for server in plan.programs}
        self._length = {server: {op: duration(cost, op) for op in COMPUTE} for server, cost in costs.items()}
        self.update = {server.stage: cost.update for server, cost in costs.items()}
        self.start: dict[Server, list[int]] = {}
        self.end: dict[Server, list[int]] = {}
        self.moves: dict[tuple[Server, int], tuple[int, int]] = {}
        self.ready: dict[int, Moment] = {}
        self.updates: dict[Server, tuple[int, int]] = {}
        self.makespan = 0

    def first_release(self) -> list[int]:
        """No resource was used before."""
        servers = len(self._lane)
        return [0] * servers + [NEVER] * (4 * servers)

    def run(self, release: list[int]) -> list[Moment]:
        """Do everything as soon as it can be, with no resource before its release.

        Returns:
            When the use of each is over.
        """
        servers, depth = len(self._lane), len(self._plan.job.stages)
        at = [Moment(time, place) for place, time in enumerate(release)]
        self.start = {server: [] for server in self._lane}
        self.end = {server: [] for server in self._lane}
        self.moves = {}
        sent = {server: at[lane] for server, lane in self._lane.items()}
        done: dict[tuple[Op, int, int, int], Moment] = {}
        come: dict[tuple[Op, int, int, int], Moment] = {}
        for server, place in self._order:
            each = self._plan.programs[server][place]
            op, lane, unit = each.op, self._lane[server], (each.stage, each.home, each.micro_batch)
            if op in COMPUTE:
                need = other_server_need(op, each.stage, depth)
                free = at[lane]
                if need is not None:
                    free = max(free, come.get((need.phase, need.stage, *unit[1:]), free))
                at[lane] = free.later(self._length[server][op])
                self.start[server].append(free.time)
                self.end[server].append(at[lane].time)
                done.update(((phase, *unit), at[lane]) for phase in op.phases)
            elif op is Op.SNAP:
                self.moves[server, place] = at[lane].time, at[lane].time + self._copies.snapshot
                at[lane] = at[lane].later(self._copies.snapshot)
            elif op.is_send:
                assert each.peer is not None, f"{each} goes to nobody"
                there = self._lane[each.peer]
                # Of pieces and of results: the way out of the one, and the way in to the other.
                pieces = servers + 4 * lane, servers + 4 * there + 2
                results = pieces[0] + 1, pieces[1] + 1
                if op is Op.SEND_S:
                    length = self._copies.copy
                    used = [at[way] for way in (*pieces, *results)] if length else []
                    start = max(at[lane], at[there], *used)
                    sent[server] = max(sent[server], start.later(length))
                    _use(at, pieces if length else (), start.later(length))
                else:
                    length, phase = self._result(each)
                    made = done[phase, *unit]
                    start = max(made, *(at[way] for way in pieces)) if length else made
                    come[phase, *unit] = start.later(length)
                    _use(at, results if length else (), start.later(length))
                self.moves[server, place] = start.time, start.time + length
        self.makespan = max((times[-1] for times in self.end.values() if times), default=0)
        self._update(at, sent)
        return at

    def _result(self, send: Instruction) -> tuple[int, Op]:
        """How long a result is on its way, and of which phase it is."""
        forward = send.op is Op.SEND_F
        length = self._plan.job.lag(send.stage, send.stage + (1 if forward else -1))
        return length, Op.F if forward else Op.I

    def _update(self, at: list[Moment], sent: Mapping[Server, Moment]) -> None:
        """Let every stage update when all its servers have come to it and what they send has arrived."""
        self.ready = {}
        for server, lane in self._lane.items():
            mine = max(at[lane], sent[server])
            self.ready[server.stage] = max(mine, self.ready.get(server.stage, mine))
        for server, lane in self._lane.items():
            ready, length = self.ready[server.stage], self.update[server.stage]
            self.updates[server] = ready.time, ready.time + length
            at[lane] = ready.later(length)


def _use(at: list[Moment], ways: tuple[int, ...], end: Moment) -> None:
    for way in ways:
        at[way] = max(at[way], end)
