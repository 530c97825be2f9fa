"""Whether layers should move after failures: other placements against re-routing."""

from collections.abc import Collection, Iterator

import msgspec

from recycle.holding import costs_on, own_layout, placed, with_layout
from recycle.job import DeadServers, Job, Server
from recycle.placement import Layout, PlacedPipeline, PlacedServer, crews
from recycle.placing.decision import BANDWIDTH, Move, Outlook, decide
from recycle.placing.forming import form
from recycle.placing.spreading import spread
from recycle.placing.transition import load_solver, stories
from recycle.plan.moves import Proposal, Situation
from recycle.plan.plan import Plan
from recycle.planner.fleets import proven_period
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

IN_A_RUN = Effort((MaxMoves(2_000),), "2000 moves")
"""While a run goes on, or waits."""


class ChunkMover:
    """Decides in a run whether chunks move after a change of servers, and plans where they have; it is a Mover.

    A pipeline whose servers have died is spread over those that are left of it (``recycle.placing.spreading``), and
    micro-batches are shared out so that pipelines finish together. Around dead servers, all that live also form
    pipelines anew, whatever pipeline they were in (``recycle.placing.forming``). Of the ways that are tried, the
    planner says how quick they are, and the one is taken that gains the most.

    Args:
        first: the plan of the run's first view.
        outlook: how long servers stay as they are.
    """

    def __init__(self, first: Plan, outlook: Outlook) -> None:
        load_solver()  # where it is not installed, that is said before the run begins
        self._first = first
        self._outlook = outlook
        self._settled: tuple[Job, DeadServers] | None = None

    def plan(self, job: Job, dead: DeadServers) -> Plan:
        """See Mover."""
        plan = make_plan(job, dead, self._first.mode, IN_A_RUN)
        # What is kept is a share of what the run had, and not of what is possible with fewer servers.
        return msgspec.structs.replace(plan, baseline=self._first.baseline)

    def weigh(self, situation: Situation) -> Proposal | None:
        """See Mover."""
        job, dead = situation.plan.job, situation.plan.dead
        # Where the last proposal has led, nothing is left to decide. Where layers stay, each view is weighed anew.
        if (job, dead) == self._settled:
            return None
        # A server has its own list alone.
        live = frozenset(job.servers()) - frozenset(dead)
        others = dict.fromkeys(each for each in _placements(situation.home, job, live) if each != job)
        if not others:
            return Proposal("re-route on: there is no other placement to move to", None) if dead else None
        until = self._outlook.until_change(len(live), len(dead))
        plans = [self.plan(each, each.dead_servers(dead)) for each in others]
        decided = [(decide(_move(situation, each, live), until), each) for each in plans]
        # Where moving does not pay, the line is about the quickest.
        decision, best = max(
            decided, key=lambda each: (each[0].moves, each[0].gained if each[0].moves else 0.0, -each[1].period)
        )
        if not decision.moves:
            return Proposal(decision.line, None)
        self._settled = best.job, dead
        pipelines = {each: job.pipeline_of(each) for each in live}
        crews = {number: [each for each in crew if each in live] for number, crew in enumerate(best.job.crews)}
        told = stories({number: crew for number, crew in crews.items() if crew}, pipelines)
        return Proposal("; ".join((decision.line, *told)), best)


def _move(situation: Situation, plan: Plan, live: Collection[Server]) -> Move:
    """What a plan with another placement would bring, and cost."""
    now, size = situation.plan, situation.chunk
    gained = [len(set(placed(plan.job, each).chunks) - set(placed(now.job, each).chunks)) for each in live]
    then = situation.seconds * plan.period / now.period
    return Move(situation.seconds, then, sum(gained) * size, max(gained) * size, BANDWIDTH, then)


def _placements(home: Job, present: Job, live: frozenset[Server]) -> Iterator[Job]:
    """Ways to place the chunks on the live servers.

    Args:
        home: what is trained, with what each server holds while all live.
        present: the same with what each server holds now.
        live: servers.
    """
    own = _in_own_pipelines(home, present, live)
    if own is not None:
        # With the micro-batches of home, and with shares that fit better.
        yield with_layout(home, own)
        yield _shared(home, own)
    if len(live) < len(home.servers()):
        formed = form(home, present, live, proven_period)
        if formed is not None:
            yield with_layout(home, formed)


def _in_own_pipelines(home: Job, present: Job, live: frozenset[Server]) -> Layout | None:
    """Every server in the pipeline of its name; one that cannot hold the model is left as it is, or None."""
    now = own_layout(present)
    crossed = any(server.pipeline is not None for each in now for server in each.servers) or not all(crews(now))
    pipelines: list[PlacedPipeline] = []
    for number, mine in enumerate(own_layout(home)):
        places = [server.stage for server in live if server.pipeline == number]
        servers: tuple[PlacedServer, ...] | None = None
        if len(places) == len(mine.servers):
            servers = mine.servers
        elif places:
            servers = spread(home, mine.servers, places, [each.chunks for each in now[number].servers])
        if servers is None and crossed:
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
