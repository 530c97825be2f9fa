"""Whether layers should move after failures and beside slow servers: other placements against re-routing."""

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import msgspec

from recycle.holding import costs_on, own_layout, placed, with_layout
from recycle.job import DeadServers, Job, Server
from recycle.placement import Layout, PlacedPipeline, PlacedServer, crews
from recycle.placing.decision import BANDWIDTH, Move, Outlook, decide, learnt_outlook
from recycle.placing.forming import cut_by_speed, form
from recycle.placing.leaving import servers_of_use
from recycle.placing.spreading import spread, with_speeds
from recycle.placing.transition import load_solver, stories
from recycle.plan.moves import Proposal, Situation
from recycle.plan.plan import Plan
from recycle.planner.belief import Belief
from recycle.planner.fleets import proven_period
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.speeds import SLOW

MOST_SERVERS = 256
"""Of more, fleets and copies take too long to find beside an explanation."""

ONCE = Effort((MaxMoves(1),), "1 move")

IN_A_RUN = Effort((MaxMoves(2_000),), "2000 moves")
"""While a run goes on, or waits."""

ENOUGH = 8
"""Deaths or returns from which on a run knows better than its settings how often they come."""


class ChunkMover:
    """Decides in a run whether chunks move after a change of servers, and plans where they have; it is a Mover.

    A pipeline whose servers have died, or are slow, is spread over those that are left of it
    (``recycle.placing.spreading``), and micro-batches are shared out so that pipelines finish together. Around dead
    servers, all that live also form pipelines anew, whatever pipeline they were in (``recycle.placing.forming``). The
    same is tried without servers that are too slow to help (``recycle.placing.leaving``). Of the ways that are tried,
    the planner says how quick they are, and the one is taken that gains the most. A server's speed is what the layout
    says, until the run has shown another one.

    Args:
        first: the plan of the run's first view.
        outlook: how long servers stay as they are, until the run has seen enough of it itself.
        by_speed: whether a placement changes also because servers are slow.
    """

    def __init__(self, first: Plan, outlook: Outlook, *, by_speed: bool = False) -> None:
        load_solver()  # where it is not installed, that is said before the run begins
        self.by_speed = by_speed
        self._first = first
        self._outlook = outlook
        self._judged: _Case | None = None
        self._settled: _Case | None = None
        self._belief = Belief()

    def plan(self, job: Job, dead: DeadServers) -> Plan:
        """See Mover."""
        plan = make_plan(job, dead, self._first.mode, IN_A_RUN)
        # What is kept is a share of what the run had, and not of what is possible with fewer servers.
        return msgspec.structs.replace(plan, baseline=self._first.baseline)

    def weigh(self, situation: Situation) -> Proposal | None:
        """See Mover."""
        present, home = situation.plan, situation.home
        job, dead = present.job, present.dead
        # A server has its own list alone.
        live = frozenset(job.servers()) - frozenset(dead)
        judged = self._judged
        known: Mapping[Server, int] = {each: placed(job, each).speed for each in job.servers()}
        if judged is not None and judged.job == job:
            known = judged.speeds
        belief = self._belief
        belief.forget(dead)
        speeds = {**known, **belief.changes(home, known, situation.shares)}
        tried: Mapping[Server, int] = {}
        if situation.shares:
            idle = [each for each in live if not placed(job, each).chunks]
            tried = belief.tried_again(home, idle, known, situation.seen.seconds, situation.seconds)
            speeds |= tried
        case = _Case(job, frozenset(dead), speeds)
        # Where the last proposal has led, nothing is left to decide. Where layers stay, each view is weighed anew.
        if case == self._settled or (situation.shares and speeds == known):
            return None
        self._judged = case
        here = _at_speeds(job, speeds)
        plans = self._try(_Ways(_at_speeds(home, speeds), home, here, live), dead, speeds)
        if not plans:
            return Proposal("re-route on: there is no other placement to move to", None) if dead else None
        # The plan of this view knows of no other speeds than the view's.
        now = present if here == job else self.plan(here, here.dead_servers(dead))
        until = self._until(situation)
        decided = [(decide(_move(situation, each, now, live), until), each) for each in plans]
        # Where moving does not pay, the line is about the quickest.
        decision, best = max(
            decided, key=lambda each: (each[0].moves, each[0].gained if each[0].moves else 0.0, -each[1].period)
        )
        changed = [each for each in sorted(live) if speeds[each] != known[each]]
        said = [_tried_text(each) if each in tried else _share_text(each, situation.shares[each]) for each in changed]
        if not decision.moves:
            return Proposal("; ".join((*said, decision.line)), None)
        # There nothing is left to decide.
        self._judged = self._settled = case._replace(job=best.job)
        pipelines = {each: job.pipeline_of(each) for each in live if placed(best.job, each).chunks}
        crews = {number: [each for each in crew if each in live] for number, crew in enumerate(best.job.crews)}
        told = stories({number: crew for number, crew in crews.items() if crew}, pipelines)
        return Proposal("; ".join((*said, decision.line, *_left_out(job, best.job, live), *told)), best)

    def _try(self, ways: "_Ways", dead: DeadServers, speeds: Mapping[Server, int]) -> list[Plan]:
        """Plans of other placements: on all live servers, and quicker ones without those that are too slow to help."""
        plans: dict[Job, Plan] = {}

        @cache
        def plans_on(used: frozenset[Server]) -> list[Plan]:
            jobs = dict.fromkeys(each for each in ways.on(used) if each != ways.present)
            plans.update((each, self.plan(each, each.dead_servers(dead))) for each in jobs if each not in plans)
            return [plans[each] for each in jobs]

        def period_on(used: frozenset[Server]) -> float:
            return min((each.period for each in plans_on(used)), default=math.inf)

        with_all = plans_on(ways.live)
        used = servers_of_use(ways.live, speeds, period_on)
        if used == ways.live:
            return with_all
        least = period_on(ways.live)
        return with_all + [each for each in plans_on(used) if each.period < least]

    def _until(self, situation: Situation) -> float:
        """Seconds until servers are expected to change; from what the run has seen where that is enough."""
        seen, plan = situation.seen, situation.plan
        outlook = learnt_outlook(
            self._outlook,
            seen.seconds,
            seen.live / seen.seconds if seen.seconds else 0.0,
            seen.failures if seen.failures >= ENOUGH else 0,
            seen.dead / seen.seconds if seen.seconds else 0.0,
            seen.repairs if seen.repairs >= ENOUGH else 0,
        )
        dead = len(plan.dead)
        return outlook.until_change(len(plan.job.servers()) - dead, dead)


class _Case(NamedTuple):
    """What was decided about.

    Attributes:
        job: with what each server holds.
        dead: servers.
        speeds: of all servers, in percent.
    """

    job: Job
    dead: frozenset[Server]
    speeds: Mapping[Server, int]


def _move(situation: Situation, plan: Plan, now: Plan, live: Collection[Server]) -> Move:
    """What a plan with another placement would bring, and cost, beside one for the present placement."""
    held, size = situation.plan.job, situation.chunk
    gained = [len(set(placed(plan.job, each).chunks) - set(placed(held, each).chunks)) for each in live]
    then = situation.seconds * plan.period / now.period
    return Move(situation.seconds, then, sum(gained) * size, max(gained) * size, BANDWIDTH, then)


def _left_out(before: Job, after: Job, live: Collection[Server]) -> Iterator[str]:
    """Who of the live servers is left out, and who no longer is, in words."""
    for server in sorted(live):
        worked, works = (bool(placed(job, server).chunks) for job in (before, after))
        if works < worked:
            yield f"{server} is too slow to help, and is left out"
        elif works > worked:
            yield f"{server} is of use again"


def _share_text(server: Server, share: float) -> str:
    if share >= SLOW:
        return f"{server} is as fast as its peers again"
    return f"{server} computes at {share:.0%} of its peers' speed"


def _tried_text(server: Server) -> str:
    return f"{server} may be faster than when it was left out"


def _at_speeds(job: Job, speeds: Mapping[Server, int]) -> Job:
    """The same placement with servers of such speeds."""
    pipelines = []
    for number, each in enumerate(own_layout(job)):
        of_places = {place: speeds[Server(number, place)] for place in range(len(each.servers))}
        pipelines.append(PlacedPipeline(each.micro_batches, with_speeds(each.servers, of_places)))
    return with_layout(job, tuple(pipelines))


class _Ways(NamedTuple):
    """Where the ways to place the chunks begin.

    Attributes:
        home: which server holds what while all live, with the speeds of now.
        first: the same with the speeds of the start.
        present: which server holds what now, with the speeds of now.
        live: servers.
    """

    home: Job
    first: Job
    present: Job
    live: frozenset[Server]

    def on(self, used: frozenset[Server]) -> Iterator[Job]:
        """Ways on some of the live servers: with the micro-batches of home, and with shares that fit better."""
        home, now = self.home, own_layout(self.present)
        if used == self.live and own_layout(home) != own_layout(self.first):
            # Nothing has to be copied where micro-batches alone move.
            yield _shared(home, now)
        own = self._in_own_pipelines(used)
        if own is not None:
            yield with_layout(home, own)
            yield _shared(home, own)
        if len(used) < len(home.servers()):
            formed = form(home, self.present, used, proven_period)
            if formed is not None:
                yield with_layout(home, formed)
                if own_layout(home) != own_layout(self.first):
                    yield _shared(home, cut_by_speed(home, self.present, formed))

    def _in_own_pipelines(self, used: frozenset[Server]) -> Layout | None:
        """Every server in the pipeline of its name; one that cannot hold the model is left as it is, or None."""
        home, now = self.home, own_layout(self.present)
        crossed = any(server.pipeline is not None for each in now for server in each.servers) or not all(crews(now))
        lacking = {server.pipeline for server in self.live - used}
        pipelines: list[PlacedPipeline] = []
        for number, (mine, before) in enumerate(zip(own_layout(home), own_layout(self.first), strict=True)):
            places = [server.stage for server in used if server.pipeline == number]
            servers: tuple[PlacedServer, ...] | None = None
            if len(places) == len(mine.servers) and mine == before:
                servers = mine.servers
            elif places:
                servers = spread(home, mine.servers, places, [each.chunks for each in now[number].servers])
            if servers is None and (crossed or number in lacking):
                return None
            pipelines.append(PlacedPipeline(mine.micro_batches, servers or now[number].servers))
        return tuple(pipelines)


def _shared(job: Job, layout: Layout) -> Job:
    """A job of some pipelines, of which each brings as many micro-batches as is best."""
    shares = _shares(with_layout(job, layout))
    pairs = zip(shares, layout, strict=True)
    return with_layout(job, tuple(PlacedPipeline(share, each.servers) for share, each in pairs))


def _shares(job: Job) -> list[int]:
    """Micro-batches of each pipeline, as many in all as before, so that the slowest server of all is the quickest."""
    slowest = {
        pipeline: max(sum(stage.work for stage in costs_on(job, server).values()) for server in crew)
        for pipeline, crew in enumerate(job.crews)
        if crew
    }
    shares = [int(pipeline in slowest) for pipeline in range(job.pipelines)]
    for _ in range(sum(job.loads) - sum(shares)):
        least = min(slowest, key=lambda pipeline: (shares[pipeline] + 1) * slowest[pipeline])
        shares[least] += 1
    return shares
