"""The simulator: a trace and a policy, from change to change, with every second of every server accounted for.

Between two changes a policy goes through phases, and in each the run is even: it trains at a rate, with safe points at
equal distances of progress, or it pauses. So a phase is accounted for in one step, however long it is.
"""

import math
from collections.abc import Iterator

from recycle.faults.outages import Outages
from recycle.study.buckets import Bucket, Outcome, RunSpan
from recycle.study.policy import Cluster, Phase, Policy, Return


def simulate(policy: Policy, pipelines: int, depth: int, outages: Outages) -> Outcome:
    """What a policy makes of a trace.

    Args:
        policy: a fresh one: policies may remember what they did.
        pipelines: of the job.
        depth: stages of a pipeline.
        outages: of at least as many places as the policy has servers; further places are left out.
    """
    cluster = Cluster(pipelines, depth, policy.spares)
    assert outages.nodes >= cluster.size, (outages.nodes, cluster.size)
    run = _Run(policy, cluster)
    failures = []
    phases: tuple[Phase, ...] = ()
    for time, changes in _moments(outages, cluster.size):
        phases = run.go_on(phases, time)
        died = cluster.change(changes)
        # What is dead from the start failed before it.
        if time and any(dead for _, dead in changes):
            failures.append(time)
        if time == outages.seconds:
            break
        reaction = policy.react(cluster, died)
        if reaction is not None:
            run.go_back(reaction.back)
            # Nobody stops at the start to get where they begin.
            phases = reaction.phases if time else reaction.phases[-1:]
            assert phases[-1].seconds == math.inf, phases
    return run.outcome(outages.seconds, tuple(failures))


def _moments(outages: Outages, size: int) -> Iterator[tuple[float, list[tuple[int, bool]]]]:
    """The begin, every change with what changes, and the end."""
    changes: dict[float, dict[int, int]] = {0.0: {}}
    for node, start, end in outages.entries:
        if node < size and start < end:
            for time, step in ((start, 1), (min(end, outages.seconds), -1)):
                at = changes.setdefault(time, {})
                # A server whose outages touch is dead throughout.
                at[node] = at.get(node, 0) + step
    changes.setdefault(outages.seconds, {})
    for time in sorted(changes):
        yield time, [(node, step > 0) for node, step in changes[time].items() if step]


class _Run:
    """The account of a run."""

    def __init__(self, policy: Policy, cluster: Cluster) -> None:
        self._policy = policy
        self._cluster = cluster
        self._time = 0.0
        self._progress = 0.0
        self._safe = 0.0
        self._buckets = dict.fromkeys(Bucket, 0.0)
        # Progress and useful server-seconds of each stretch of training that is left.
        self._pieces: list[tuple[float, float]] = []
        self._spans: list[RunSpan] = []

    def go_on(self, phases: tuple[Phase, ...], until: float) -> tuple[Phase, ...]:
        """Go through phases; what is left of them at that time comes back."""
        rest = list(phases)
        while self._time < until:
            phase = rest[0]
            if phase.bucket is Bucket.SNAPSHOT and self._progress == self._safe:
                # Nothing was trained that a checkpoint would make safe.
                rest.pop(0)
                continue
            wall = min(phase.seconds, until - self._time)
            self._account(phase, wall)
            if wall == phase.seconds:
                rest.pop(0)
                if phase.bucket is Bucket.SNAPSHOT:
                    self._safe = self._progress
            else:
                rest[0] = phase._replace(seconds=phase.seconds - wall)
        return tuple(rest)

    def go_back(self, back: Return) -> None:
        """Throw away what is not safe."""
        if back is Return.NOWHERE:
            return
        target = self._safe
        if back is Return.CHECKPOINT:
            every = self._policy.checkpoint_interval
            target = min(target, math.floor(self._safe / every) * every)
        while self._pieces and self._progress > target:
            progress, useful = self._pieces.pop()
            share = min(1.0, (self._progress - target) / progress)
            self._buckets[Bucket.USEFUL] -= useful * share
            self._buckets[Bucket.REDONE] += useful * share
            self._progress -= progress * share
            if share < 1:
                self._pieces.append((progress * (1 - share), useful * (1 - share)))
                break
        self._progress = self._safe = target

    def outcome(self, seconds: float, failures: tuple[float, ...]) -> Outcome:
        """What came of it."""
        cluster = self._cluster
        return Outcome(
            policy=self._policy.name,
            paid=cluster.size,
            job=cluster.job,
            seconds=seconds,
            progress=self._progress,
            buckets=self._buckets,
            failures=failures,
            spans=tuple(self._spans),
        )

    def _account(self, phase: Phase, wall: float) -> None:
        live = self._cluster.live
        used = min(phase.used, live)
        self._buckets[Bucket.DEAD] += (self._cluster.size - live) * wall
        self._buckets[Bucket.UNUSED] += (live - used) * wall
        if phase.bucket is not Bucket.USEFUL:
            self._buckets[phase.bucket] += used * wall
        elif phase.rate <= 0:
            self._buckets[Bucket.WAITING] += used * wall
        else:
            training, snapshot = self._train(phase.rate, wall)
            useful = min(float(used), phase.rate * self._cluster.job)
            self._buckets[Bucket.USEFUL] += useful * training
            self._buckets[Bucket.WAITING] += (used - useful) * training
            self._buckets[Bucket.SNAPSHOT] += used * snapshot
            if training > 0:
                self._pieces.append((phase.rate * training, useful * training))
        self._spans.append(RunSpan(self._time, self._time + wall, phase.rate, phase.bucket, live))
        self._time += wall

    def _train(self, rate: float, wall: float) -> tuple[float, float]:
        """Progress and safe points of a stretch; the time for training in it, and that for snapshots and checkpoints.

        A snapshot that the end of the stretch cuts off is not made: the next stretch begins it again.
        """
        interval, cost = self._policy.interval, self._policy.cost
        whole, wall = wall, wall / (1 + rate * self._policy.standing)
        standing = whole - wall
        until_due = max(0.0, self._safe + interval - self._progress) / rate
        if wall < until_due + cost:
            training = min(wall, until_due)
            self._progress += rate * training
            return training, wall - training + standing
        rest = wall - until_due - cost
        cycles = math.floor(rest / (interval / rate + cost))
        rest -= cycles * (interval / rate + cost)
        last = min(max(rest, 0.0), interval / rate)
        self._safe += (1 + cycles) * interval
        self._progress = self._safe + rate * last
        snapshot = cost * (1 + cycles) + max(rest - last, 0.0) if cost else 0.0
        return wall - snapshot, snapshot + standing
