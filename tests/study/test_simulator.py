import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.faults.outages import NodeOutage, Outages
from recycle.study.buckets import Bucket
from recycle.study.constants import TYPICAL
from recycle.study.policy import Policy, Reaction, Return, pause, train
from recycle.study.rates import Ground, Rates
from recycle.study.registry import ALL, make_policy
from recycle.study.simulator import simulate

JOB = paper_job(pipelines=3, stages=2, micro_batches=4, limit=4)
RATES = Rates(JOB, 8)
PLACES = 6 + 4


class Scripted(Policy):
    """Trains at the share of live servers, and reacts to a death as it is told."""

    name = "scripted"

    def __init__(self, interval=10.0, cost=0.0, stop=0.0, back=Return.SAFE_POINT):
        self.interval, self.cost, self.stop, self.back = interval, cost, stop, back

    def react(self, cluster, died):
        training = train(cluster.live / cluster.job, cluster.live)
        if not died:
            return Reaction((training,))
        return Reaction((pause(Bucket.RESTARTING, self.stop, cluster.live), training), self.back)


def run(policy, *entries, seconds=100.0, pipelines=2, depth=1):
    outages = Outages("test", pipelines * depth, seconds, tuple(NodeOutage(*entry) for entry in entries))
    return simulate(policy, pipelines, depth, outages)


def spent(outcome):
    return {bucket.value: seconds for bucket, seconds in outcome.buckets.items() if seconds}


def test_nothing_happens():
    outcome = run(Scripted())
    assert spent(outcome) == {"useful": 200.0}
    assert (outcome.progress, outcome.goodput, outcome.failures) == (100.0, 1.0, ())


def test_a_death_throws_away_what_is_not_safe():
    outcome = run(Scripted(), (0, 37.0, 100.0))
    # Seven seconds of both servers are redone; then one of two trains.
    assert spent(outcome) == pytest.approx({"useful": 60 + 63, "redone": 14, "dead": 63})
    assert outcome.progress == pytest.approx(30 + 63 / 2)


def test_a_pause_is_the_live_ones():
    outcome = run(Scripted(stop=13.0), (0, 40.0, 60.0))
    assert spent(outcome) == pytest.approx({"useful": 80 + 7 + 80, "restarting": 13, "dead": 20})
    assert [span.bucket for span in outcome.spans] == [Bucket.USEFUL, Bucket.RESTARTING, Bucket.USEFUL, Bucket.USEFUL]


def test_snapshots_stop_the_training():
    outcome = run(Scripted(cost=10.0), seconds=95.0)
    assert spent(outcome) == pytest.approx({"useful": 2 * 50, "snapshot": 2 * 45})
    assert outcome.progress == pytest.approx(50)


def test_a_snapshot_that_a_death_cuts_off_is_not_safe():
    outcome = run(Scripted(cost=10.0), (0, 35.0, 100.0), seconds=36.0)
    assert spent(outcome) == pytest.approx({"useful": 2 * 10 + 1, "redone": 2 * 10, "snapshot": 2 * 15, "dead": 1})


@pytest.mark.parametrize(("interval", "cost"), [(10.0, 2.0), (30.0, 15.0)])
def test_standing_still_for_checkpoints_takes_what_safe_points_of_their_cost_take(interval, cost):
    beside = Scripted(interval=1.0)
    beside.standing = cost / interval
    ours, theirs = run(beside, seconds=9000.0), run(Scripted(interval=interval, cost=cost), seconds=9000.0)
    assert ours.progress == pytest.approx(theirs.progress, abs=interval)
    assert ours.progress == pytest.approx(9000.0 / (1 + cost / interval))
    assert spent(ours) == pytest.approx({"useful": 2 * ours.progress, "snapshot": 2 * (9000.0 - ours.progress)})


def test_back_to_the_checkpoint_on_disk():
    policy = Scripted(interval=1.0, back=Return.CHECKPOINT)
    policy.checkpoint_interval = 25.0
    outcome = run(policy, (0, 60.0, 100.0))
    assert outcome.progress == pytest.approx(50 + 40 / 2)
    assert outcome.buckets[Bucket.REDONE] == pytest.approx(20)
    # The second death throws away what was trained with one server and, after its return, with both.
    outcome = run(policy, (0, 30.0, 40.0), (1, 50.0, 100.0))
    assert outcome.progress == pytest.approx(25 + 50 / 2)
    assert outcome.buckets[Bucket.REDONE] == pytest.approx(2 * 5 + 10 + 2 * 10)


def test_a_pause_during_a_pause_begins_anew():
    outcome = run(Scripted(stop=20.0), (0, 10.0, 100.0), (1, 20.0, 90.0), pipelines=3)
    assert outcome.buckets[Bucket.RESTARTING] == pytest.approx(2 * 10 + 1 * 20)
    assert outcome.failures == (10.0, 20.0)


def test_what_is_dead_from_the_start_has_not_failed_in_the_trace():
    outcome = run(Scripted(stop=20.0), (0, 0.0, 10.0), (1, 50.0, 60.0))
    assert outcome.failures == (50.0,)


@st.composite
def traces(draw):
    seconds = draw(st.floats(10, 1e7))
    entries = []
    for node in range(PLACES):
        times = sorted(draw(st.lists(st.floats(0, 1), max_size=8, unique=True)))
        pairs = zip(times[::2], times[1::2], strict=False)
        entries += [NodeOutage(node, start * seconds, end * seconds) for start, end in pairs]
    entries = [entry for entry in entries if entry.start < entry.end]
    return Outages("random", PLACES, seconds, tuple(sorted(entries, key=lambda entry: entry.start)))


@settings(max_examples=60)
@given(traces(), st.sampled_from(["spares:4", "spares:4:warm", "recycle", "recycle+move-layers"]))
def test_a_spare_in_reserve_that_dies_costs_nothing(outages, name):
    def outcome_of(entries):
        policy = make_policy(name, Ground(JOB, 10.0, 8, 1e-4), RATES)
        policy.spares = 4
        changed = Outages(outages.name, PLACES, outages.seconds, tuple(entries))
        return simulate(policy, JOB.pipelines, JOB.depth, changed).progress

    of_spares = [entry for entry in outages.entries if entry.node >= 6]
    # A checkpoint that is under way begins again.
    begun_again = 2 * len(of_spares) * TYPICAL.checkpoint_cost
    assert outcome_of(of_spares) == pytest.approx(outcome_of([]), abs=begun_again)


@settings(max_examples=60)
@given(traces(), st.sampled_from(ALL), st.floats(0.01, 1000))
def test_every_second_of_every_server_is_in_one_bucket(outages, name, iteration):
    policy = make_policy(name, Ground(JOB, iteration, 8, max(outages.failures_per_second, 1e-9)), RATES)
    outcome = simulate(policy, JOB.pipelines, JOB.depth, outages)
    assert sum(outcome.buckets.values()) == pytest.approx(outcome.paid * outages.seconds, abs=1)
    assert all(seconds >= -1e-3 for seconds in outcome.buckets.values()), outcome.buckets
    down = sum(entry.end - entry.start for entry in outages.entries if entry.node < outcome.paid)
    assert outcome.buckets[Bucket.DEAD] == pytest.approx(down, abs=1)
    assert -1e-6 <= outcome.progress <= outages.seconds * (1 + 1e-9)
    assert outcome.goodput <= 1 + 1e-9
    assert all(one.end == later.start for one, later in pairwise(outcome.spans))
    assert math.isclose(sum(span.end - span.start for span in outcome.spans), outages.seconds)
