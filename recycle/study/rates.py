"""Throughput with dead servers, as a share of the job's fault-free 1F1B schedule: from the planner, or from templates.

No share is above 1: what a plan gains over 1F1B while nobody is dead is not counted for surviving.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import msgspec

from recycle.errors import UserError
from recycle.faults.node_traces import MOST_NODES
from recycle.job import Job
from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import Model, layers_of
from recycle.placing.templates import Templates, make_templates
from recycle.plan.normalise import Counts, canonical_dead
from recycle.planner.assemble import unlimited_baseline
from recycle.planner.fleets import STAGGERED, plan_fleet, proven_period
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves

MOST_TASKS = 5_000
"""Jobs with more tasks are judged by the proven bound, and by how far plans of their like are above it."""

SEARCH = Effort((MaxMoves(500),), "500 moves")
ONCE = Effort((MaxMoves(1),), "1 move")
SAMPLE_PIPELINES = 8
ROUNDS = 60
FEWER = 8

MOST_SERVERS = 256
"""Fleets of more servers are judged by one of their equal parts."""


class Ground(msgspec.Struct, frozen=True):
    """What all policies of a study have in common.

    Attributes:
        job: that is trained.
        iteration: seconds of its fault-free iteration.
        layers: of the model, for cuts into other numbers of stages.
        failures_per_second: of the whole cluster, which intervals between checkpoints are chosen for.
    """

    job: Job
    iteration: float
    layers: int
    failures_per_second: float

    def __post_init__(self) -> None:
        if not 0 < self.iteration < math.inf:
            raise UserError(f"iteration is {self.iteration:g}: give seconds above 0")
        if (servers := self.job.pipelines * self.job.depth) > MOST_NODES:
            raise UserError(f"{servers} servers: a study has {MOST_NODES} at most; give fewer")
        if self.layers < self.job.depth:
            raise UserError(f"layers is {self.layers}: {self.job.depth} stages need at least {self.job.depth} layers")


class Rates:
    """Shares of fault-free throughput, each computed once.

    Args:
        job: that is trained.
        layers: of the model.
        most: the greatest share that re-routing is given.
    """

    def __init__(self, job: Job, layers: int, most: float = 1.0) -> None:
        self.job = job
        self.layers = layers
        self._most = most
        self._rerouted: dict[Counts, float] = {}
        self._templates: dict[int, float] = {}
        self._placed: dict[int, float] = {}
        self._fewer: dict[int, float] = {}
        self._bounds: dict[tuple[int, ...], int] = {}

    def rerouted(self, counts: Counts) -> float:
        """By a plan around so many dead servers of each stage; every stage has a live one."""
        if counts not in self._rerouted:
            self._rerouted[counts] = min(self._most, self._baseline / self._period(counts))
        return self._rerouted[counts]

    def templates(self, live: int) -> float:
        """By the best pipelines of unequal depth on so many servers: fused 1F1B, fill and drain included.

        Layers are cut as evenly as their number allows, and micro-batches shared out so that all finish together.
        """
        if live not in self._templates:
            shapes = (self._unequal(live, pipelines) for pipelines in self._degrees(live))
            self._templates[live] = min(1.0, self._whole / min(shapes, default=math.inf))
        return self._templates[live]

    def placed(self, live: int) -> float:
        """By the best fleet on so many servers that loses no layer with any one of them.

        Its plan says so. Of many servers an equal part of them is taken, with its part of the micro-batches, and of
        jobs with many tasks the proven bound, lengthened as that of re-routing.
        """
        if live not in self._placed:
            job, parts = self.job, -(-live // MOST_SERVERS)
            total = job.pipelines * job.micro_batches // parts
            score = proven_period(self._model)
            fleet = choose_fleet(self._cuts, live // parts, total, score, failures=min(1, job.pipelines - 1))
            period = math.inf
            if fleet is not None:
                is_planned = parts == 1 and not self.is_bounded
                length = plan_fleet(self._model, fleet, ONCE).period if is_planned else fleet.period * (1 + self._gap)
                period = length / self.layers
            self._placed[live] = min(self._most, self._baseline / period)
        return self._placed[live]

    def whole(self, pipelines: int) -> float:
        """By so many pipelines of the job's depth, which share all micro-batches."""
        if pipelines == 0:
            return 0.0
        if pipelines not in self._fewer:
            total = self.job.pipelines * self.job.micro_batches
            self._fewer[pipelines] = min(1.0, self._whole / self._time([(self.job.depth, pipelines)], total))
        return self._fewer[pipelines]

    @property
    def is_bounded(self) -> bool:
        """Whether throughput is by proven bounds, because plans have too many tasks."""
        return self.job.pipelines * self.job.depth * self.job.micro_batches * 3 > MOST_TASKS

    def basis(self, counts: Counts) -> str:
        """What the throughput with so many dead servers follows from, in words."""
        baseline, unit = self.job.time_text(self._baseline), self.job.time_text
        if not self.is_bounded:
            return f"plan of {unit(round(self._period(counts)))}, fault-free 1F1B {baseline}"
        return (
            f"proven bound of {unit(self._bound(counts))}, {self._gap:.1%} longer as plans of a smaller such job are, "
            f"fault-free 1F1B {baseline}"
        )

    @cached_property
    def _model(self) -> Model:
        return layers_of(self.job, self.layers)

    @cached_property
    def _cuts(self) -> Templates:
        """Of up to twice the job's depth: longer pipelines fill and drain longer than many bounds see."""
        return make_templates(self._model, 2 * self.job.depth, self.job.micro_batches)

    @cached_property
    def _baseline(self) -> int:
        return unlimited_baseline(self.job)

    @cached_property
    def _whole(self) -> float:
        """Time of the fault-free job in layers of work, as templates are timed."""
        return self._time([(self.job.depth, self.job.pipelines)], self.job.pipelines * self.job.micro_batches)

    @cached_property
    def _gap(self) -> float:
        """By how much plans of a smaller job of this kind are above their bounds, at most."""
        job = msgspec.structs.replace(self.job, pipelines=min(SAMPLE_PIPELINES, self.job.pipelines))
        vectors = [tuple(int(stage == place) for stage in range(job.depth)) for place in {0, job.depth // 2}]
        gaps = [0.0]
        for counts in vectors:
            if job.pipelines > 1:
                plan = make_plan(job, canonical_dead(job, counts), STAGGERED, Effort((MaxMoves(0),), "0 moves"))
                gaps.append(plan.gap)
        return max(gaps)

    def _period(self, counts: Counts) -> float:
        job = self.job
        if self.is_bounded:
            return self._bound(counts) * (1 + self._gap)
        dead = canonical_dead(job, counts)
        return make_plan(job, dead, STAGGERED, SEARCH).period

    def _bound(self, counts: Counts) -> int:
        """Of plans around so many dead servers. It sees a stage's live servers by the load of the busiest one only."""
        job = self.job
        loads = tuple(-(-job.pipelines * job.micro_batches // (job.pipelines - count)) for count in counts)
        if loads not in self._bounds:
            problem = make_problem(job, canonical_dead(job, counts), STAGGERED)
            self._bounds[loads] = lower_bound(problem).value
        return self._bounds[loads]

    def _degrees(self, live: int) -> Iterator[int]:
        """Numbers of pipelines worth trying: those near the job's, and those of each depth up to twice the job's."""
        most = min(live, self.job.pipelines)
        near = range(max(1, most - FEWER), most + 1)
        of_depth = (min(most, live // depth) for depth in range(1, 2 * self.job.depth + 1))
        return (pipelines for pipelines in {*near, *of_depth} if pipelines and live // pipelines <= self.layers)

    def _unequal(self, live: int, pipelines: int) -> float:
        depth, longer = divmod(live, pipelines)
        shape = [(depth, pipelines - longer), (depth + 1, longer)]
        return self._time([part for part in shape if part[1]], self.job.pipelines * self.job.micro_batches)

    def _time(self, shape: list[tuple[int, int]], total: int) -> float:
        """The least time in which pipelines, as (depth, how many), finish so many micro-batches together."""
        steps = [(-(-self.layers // depth), depth - 1, count) for depth, count in shape]

        def done(time: float) -> int:
            return sum(count * max(0, math.floor(time / step + 1e-9) - fill) for step, fill, count in steps)

        return _least(done, total, max(step * (fill + total) for step, fill, _ in steps))


def _least(done: Callable[[float], int], total: int, enough: float) -> float:
    low, high = 0.0, float(enough)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if done(middle) >= total:
            high = middle
        else:
            low = middle
    return high
