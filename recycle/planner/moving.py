"""Whether layers should move after failures: the best fleet of a plan's live servers against re-routing."""

import math
from collections.abc import Collection, Iterator, Sequence

import msgspec

from recycle.holding import own_layout, placed, with_layout
from recycle.job import DeadServers, Job, Server
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.placing.decision import BANDWIDTH, LAYER_BYTES, Decision, Move, Outlook, decide, learnt_outlook
from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import Run, layers_of
from recycle.placing.spreading import spread
from recycle.placing.templates import make_templates
from recycle.placing.transition import Transition, least_copies
from recycle.plan.moves import Proposal, Situation
from recycle.plan.plan import Plan
from recycle.planner.fleets import plan_fleet, proven_period
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

MOST_SERVERS = 256
"""Of more, fleets and copies take too long to find beside an explanation."""

ONCE = Effort((MaxMoves(1),), "1 move")

IN_A_RUN = Effort((MaxMoves(2_000),), "2000 moves")
"""While a run goes on, or waits."""

ENOUGH = 8
"""Deaths or returns from which on a run knows better than its settings how often they come."""


def weigh_move(plan: Plan, layers: int, iteration: float, outlook: Outlook) -> tuple[Decision, Transition] | None:
    """Decide whether a plan's live servers should hold other layers.

    Every layer takes an equal share of what its stage takes. When the layers have moved, all stand still for an
    iteration.

    Args:
        plan: around dead servers, of a job with one chunk per server.
        layers: of the model, at least one per stage.
        iteration: seconds of the job's fault-free 1F1B iteration.
        outlook: how long servers stay as they are.

    Returns:
        The decision and the copies that it is about; None where nothing is dead, there are too many servers, or the
        live ones cannot form a fleet that survives as much.

    Raises:
        JobError: there are fewer layers than stages.
    """
    job = plan.job
    model = layers_of(job, layers, LAYER_BYTES)
    live = [server for server in job.servers() if server not in plan.dead]
    if not plan.dead or len(live) > MOST_SERVERS:
        return None
    templates = make_templates(model, 2 * job.depth, job.micro_batches)
    total = job.pipelines * job.micro_batches
    fleet = choose_fleet(templates, len(live), total, proven_period(model), min(1, job.pipelines - 1))
    if fleet is None:
        return None
    holding: dict[Server, Run] = {
        server: (server.stage * layers // job.depth, (server.stage + 1) * layers // job.depth) for server in live
    }
    transition = least_copies(model, holding, {server: server.pipeline for server in live}, fleet)
    seconds = iteration / plan.baseline if plan.baseline else math.inf
    then = plan_fleet(model, fleet, ONCE).period / layers * seconds
    move = Move(plan.period * seconds, then, transition.size, transition.busiest, BANDWIDTH, then)
    return decide(move, outlook.until_change(len(live), len(plan.dead))), transition


class ChunkMover:
    """Decides in a run whether chunks move after a change of servers, and plans where they have; it is a Mover.

    A pipeline whose servers have died is spread over those that are left of it (``recycle.placing.spreading``), and
    micro-batches are shared out so that pipelines finish together; of the ways that are tried, the planner says which
    is the quickest.

    Args:
        first: the plan of the run's first view.
        outlook: how long servers stay as they are, until the run has seen enough of it itself.
    """

    def __init__(self, first: Plan, outlook: Outlook) -> None:
        self._first = first
        self._outlook = outlook

    def plan(self, job: Job, dead: DeadServers) -> Plan:
        """See Mover."""
        plan = make_plan(job, dead, self._first.mode, IN_A_RUN)
        # What is kept is a share of what the run had, and not of what is possible with fewer servers.
        return msgspec.structs.replace(plan, baseline=self._first.baseline)

    def weigh(self, situation: Situation) -> Proposal | None:
        """See Mover."""
        present, home = situation.plan, situation.home
        # A server has its own list alone.
        live = frozenset(present.job.servers()) - frozenset(present.dead)
        tried = [
            self.plan(job, job.dead_servers(present.dead))
            for job in dict.fromkeys(_candidates(home, present.job, live))
            if job != present.job
        ]
        if not tried:
            return None
        best = min(tried, key=lambda each: each.period)
        gained = [len(set(placed(best.job, each).chunks) - set(placed(present.job, each).chunks)) for each in live]
        then = situation.seconds * best.period / present.period
        move = Move(
            situation.seconds, then, sum(gained) * situation.chunk, max(gained) * situation.chunk, BANDWIDTH, then
        )
        decision = decide(move, self._until(situation))
        return Proposal(decision.line, best if decision.moves else None)

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


def _candidates(home: Job, present: Job, live: Collection[Server]) -> Iterator[Job]:
    """Ways to place the chunks on the live servers: with the micro-batches of home, and with shares that fit better."""
    pipelines: list[PlacedPipeline] = []
    for number, (mine, now) in enumerate(zip(own_layout(home), own_layout(present), strict=True)):
        places = [server.stage for server in live if server.pipeline == number]
        servers = spread(home, mine.servers, places, [each.chunks for each in now.servers]) if places else None
        pipelines.append(PlacedPipeline(mine.micro_batches, servers or now.servers))
    yield with_layout(home, tuple(pipelines))
    shares = _shares(home, [each.servers for each in pipelines])
    pairs = zip(shares, pipelines, strict=True)
    yield with_layout(home, tuple(PlacedPipeline(share, each.servers) for share, each in pairs))


def _shares(job: Job, pipelines: Sequence[Sequence[PlacedServer]]) -> list[int]:
    """Micro-batches of each pipeline, as many in all as before, so that the slowest server of all is the quickest."""
    slowest = [
        max(sum(server.time(job.stages[chunk].work) for chunk in server.chunks) for server in servers)
        for servers in pipelines
    ]
    shares = [1] * len(pipelines)
    for _ in range(sum(job.loads) - len(pipelines)):
        least = min(range(len(shares)), key=lambda pipeline: (shares[pipeline] + 1) * slowest[pipeline])
        shares[least] += 1
    return shares
