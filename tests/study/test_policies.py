import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.errors import UserError
from recycle.faults.outages import NodeOutage, Outages
from recycle.plan.normalise import canonical_dead
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.study.buckets import Bucket
from recycle.study.constants import MOST, MOST_SECONDS, SOURCES, TYPICAL, constant_sets, parse_constant
from recycle.study.policy import Cluster, Return
from recycle.study.rates import STAGGERED, Ground, Rates
from recycle.study.registry import ALL, NAMES, make_policy, parse_policies
from recycle.study.simulator import simulate

JOB = paper_job(limit=6, released=0)
RATES = Rates(JOB, 16)
GROUND = Ground(JOB, 10.0, 16, 1e-4)


def policy(name, **options):
    return make_policy(name, GROUND, RATES, **options)


def cluster_of(*dead, spares=0):
    cluster = Cluster(JOB.pipelines, JOB.depth, spares)
    cluster.change((server, True) for server in dead)
    return cluster


def outcome_of(name, *entries, seconds=100_000.0):
    outages = Outages("test", 20, seconds, tuple(NodeOutage(*entry) for entry in entries))
    return simulate(policy(name), JOB.pipelines, JOB.depth, outages)


@pytest.mark.parametrize("name", [name for name in ALL if name != "bamboo" and ":" not in name])
def test_without_failures_a_policy_costs_its_snapshots_only(name):
    outcome = outcome_of(name)
    lost = 1 - outcome.goodput
    assert lost == pytest.approx(outcome.buckets[Bucket.SNAPSHOT] / (12 * 100_000), abs=1e-9)


def test_spares_are_paid_for():
    assert outcome_of("spares:4").paid == 16
    assert outcome_of("spares:4").goodput < outcome_of("checkpoints").goodput


def test_rerouting_keeps_what_the_planner_says():
    reaction = policy("recycle").react(cluster_of(2), died=True)
    assert [phase.bucket for phase in reaction.phases] == [Bucket.REPLANNING, Bucket.USEFUL]
    assert reaction.back is Return.SAFE_POINT
    # One server of the third stage costs nothing (DESIGN section 4: period 30 is that of the fault-free job).
    assert reaction.phases[-1].rate == 1.0
    # One of the last stage: 31 at limit 6.
    assert policy("recycle").react(cluster_of(3), died=True).phases[-1].rate == pytest.approx(30 / 31)


def test_a_stage_without_a_server_is_read_from_disk_or_from_memory():
    cluster = cluster_of(0, 4, 8)
    for name, back in (("recycle", Return.CHECKPOINT), ("recycle+memory", Return.SAFE_POINT)):
        reaction = policy(name).react(cluster, died=True)
        assert (reaction.phases[0].bucket, reaction.back) == (Bucket.RESTARTING, back)
        assert 0 < reaction.phases[-1].rate <= 1


@pytest.mark.parametrize("name", ["recycle", "recycle+memory", "oobleck", "dropping"])
@pytest.mark.parametrize("spares", [0, 2])
def test_with_one_pipeline_every_death_is_a_restart(name, spares):
    job = paper_job(pipelines=1, limit=6, released=0)
    one = make_policy(name, Ground(job, 10.0, 16, 1e-4), Rates(job, 16))
    one.spares = spares
    outages = Outages(
        "test", 4 + spares, 50_000.0, (NodeOutage(2, 9_000.0, 9_100.0), NodeOutage(0, 30_000.0, 50_000.0))
    )
    outcome = simulate(one, 1, 4, outages)
    assert outcome.buckets[Bucket.RESTARTING] > 0
    lost = one._after_loss() if name.startswith("recycle") else Return.CHECKPOINT
    # From the checkpoints at two hours and at eight; or from memory, with at most one iteration of all for each death.
    redone = outcome.buckets[Bucket.REDONE]
    assert redone > 4 * 1_000 if lost is Return.CHECKPOINT else redone <= 2 * 4 * 10


def test_a_stage_is_lost_once_and_then_again_with_those_who_hold_it():
    cluster = Cluster(2, 4)
    assert not lost_by(cluster, 0)
    # W0_1 or W1_1 moves to the first stage, so the next one of the second stage is a loss, and others are none.
    assert lost_by(cluster, 4)
    assert not lost_by(cluster, 2)
    assert cluster.filled() == (1, 1, 1, 0)
    assert lost_by(cluster, 1)
    # A stage without a server has lost its state until one is back.
    cluster.change([(3, True), (5, True), (6, True)])
    assert cluster.lost
    assert max(cluster.filled()) == 2
    assert not cluster.change([(0, False)])
    assert cluster.lost


def lost_by(cluster, *dead):
    cluster.change((server, True) for server in dead)
    return cluster.lost


def test_a_spare_holds_no_state_before_it_has_taken_a_place():
    cluster = Cluster(2, 4, spares=2)
    assert lost_by(cluster, 1, 5)
    assert cluster.filled() == (0, 0, 0, 0)
    assert not lost_by(cluster, 8)
    assert lost_by(cluster, 9)


@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=4), max_size=12))
def test_a_stage_is_lost_where_all_of_its_servers_die_and_no_spare_is_there(moments):
    cluster = Cluster(3, 3)
    for servers in moments:
        if cluster.lost:
            break
        changes = [(server, server not in cluster.dead) for server in servers]
        # A server that comes back at that moment has no state.
        without = cluster.dead | servers
        assert cluster.change(changes) == any(dead for _, dead in changes)
        assert cluster.lost == any(without >= set(range(stage, 9, 3)) for stage in range(3))


def test_a_pipeline_is_dropped_once_and_all_are_a_restart():
    dropping, cluster = policy("dropping"), cluster_of()
    dropping.react(cluster, died=False)
    for dead, buckets, back in (
        (0, [Bucket.REPLANNING, Bucket.USEFUL], Return.SAFE_POINT),
        (1, [Bucket.USEFUL], Return.NOWHERE),
        (5, [Bucket.REPLANNING, Bucket.USEFUL], Return.SAFE_POINT),
        (10, [Bucket.REPLANNING, Bucket.USEFUL], Return.SAFE_POINT),
    ):
        reaction = dropping.react(cluster, cluster.change([(dead, True)]))
        assert ([phase.bucket for phase in reaction.phases], reaction.back) == (buckets, back)
    reaction = dropping.react(cluster, cluster.change([(10, False)]))
    assert (reaction.phases[0].bucket, reaction.back) == (Bucket.RESTARTING, Return.CHECKPOINT)


def test_layers_move_where_the_decision_says_that_it_pays():
    reaction = policy("recycle+move-layers").react(cluster_of(3, 7), died=True)
    buckets = [phase.bucket for phase in reaction.phases]
    assert buckets == [Bucket.REPLANNING, Bucket.USEFUL, Bucket.MOVING, Bucket.USEFUL]
    # Four layers of 0.6 GB to a server at 10 GB/s.
    assert reaction.phases[1].seconds == pytest.approx(0.24)
    assert reaction.phases[1].rate < reaction.phases[3].rate
    # With a failure every ten seconds a pause of as long gains nothing.
    hasty = make_policy("recycle+move-layers", Ground(JOB, 10.0, 16, 0.1), RATES)
    assert [phase.bucket for phase in hasty.react(cluster_of(3, 7), died=True).phases] == buckets[:2]


def test_placements_are_never_worse_than_rerouting():
    for dead in ((0,), (0, 4), (0, 1, 2), (0, 4, 5, 9)):
        cluster = cluster_of(*dead)
        assert (
            policy("recycle+move-layers").react(cluster, died=True).phases[-1].rate
            >= policy("recycle").react(cluster, died=True).phases[-1].rate
        )


def test_dropping_loses_whole_pipelines():
    assert policy("dropping").react(cluster_of(0, 1), died=True).phases[-1].rate == pytest.approx(2 / 3)
    assert policy("dropping").react(cluster_of(0, 5), died=True).phases[-1].rate == pytest.approx(1 / 3)


def test_oobleck_stops_below_half():
    assert policy("oobleck").react(cluster_of(*range(6)), died=True).phases[-1].rate > 0
    assert policy("oobleck").react(cluster_of(*range(7)), died=True).phases[-1].rate == 0


def test_bamboo_restarts_where_neighbours_are_dead():
    for dead, back in (((0, 2), Return.SAFE_POINT), ((0, 1), Return.CHECKPOINT), ((0, 3), Return.CHECKPOINT)):
        assert policy("bamboo").react(cluster_of(*dead), died=True).back is back


def test_a_repair_that_makes_no_pipeline_restarts_nobody():
    checkpoints = policy("checkpoints")
    checkpoints.react(cluster_of(), died=False)
    assert checkpoints.react(cluster_of(0, 1), died=True).phases[-1].rate == pytest.approx(RATES.whole(2))
    assert checkpoints.react(cluster_of(0), died=False) is None
    reaction = checkpoints.react(cluster_of(), died=False)
    assert [phase.bucket for phase in reaction.phases] == [Bucket.SNAPSHOT, Bucket.RESTARTING, Bucket.USEFUL]
    assert (reaction.phases[0].seconds, reaction.back) == (checkpoints.cost, Return.NOWHERE)


@pytest.mark.parametrize(("name", "servers"), [("checkpoints", 12), ("spares:1:warm", 13)])
def test_a_failure_after_a_restart_on_purpose_loses_what_was_trained_since(name, servers):
    constants = msgspec.structs.replace(TYPICAL, checkpoint_interval=1e6)
    entries = [NodeOutage(node, 10_000.0, 20_000.0) for node in (0, 1)]
    last = NodeOutage(2, 30_000.0, 40_000.0)

    def outcome(*entries, seconds=30_000.0):
        outages = Outages("test", 13, seconds, tuple(entries))
        return simulate(policy(name, constants=constants), JOB.pipelines, JOB.depth, outages)

    at_restart = outcome(*entries, seconds=20_000.0).progress
    until = outcome(*entries)
    assert until.buckets[Bucket.SNAPSHOT] == pytest.approx(servers * TYPICAL.checkpoint_cost)
    after = outcome(*entries, last, seconds=30_000.5)
    assert after.progress == pytest.approx(at_restart)
    assert 0 < at_restart < until.progress


def test_a_restart_of_a_job_that_waited_writes_no_checkpoint():
    constants = msgspec.structs.replace(TYPICAL, checkpoint_interval=1e6)
    # Three servers make no pipeline.
    entries = tuple(NodeOutage(node, 10_000.0, 20_000.0) for node in range(9))
    outages = Outages("test", 12, 50_000.0, entries)
    outcome = simulate(policy("checkpoints", constants=constants), JOB.pipelines, JOB.depth, outages)
    assert outcome.buckets[Bucket.SNAPSHOT] == 0 < outcome.buckets[Bucket.RESTARTING]


def test_warm_spares_are_back_sooner():
    spares = policy("spares:1:warm")
    spares.react(cluster_of(spares=1), died=False)
    first = spares.react(cluster_of(0, spares=1), died=True)
    second = spares.react(cluster_of(0, 1, spares=1), died=True)
    assert first.phases[0].seconds < second.phases[0].seconds
    assert first.phases[-1].rate == 1 > second.phases[-1].rate


def test_constants_that_favour_a_rival_favour_it():
    trace = tuple(NodeOutage(0, 1000.0 * number, 1000.0 * number + 500) for number in range(1, 90))
    outages = Outages("test", 12, 1e5, trace)
    for name in ("oobleck", "checkpoints"):
        small, large = (
            simulate(policy(name, constants=constants), JOB.pipelines, JOB.depth, outages).goodput
            for constants in (constant_sets()[0], constant_sets()[-1])
        )
        assert small > large


def test_templates_and_whole_pipelines():
    assert RATES.templates(12) == RATES.whole(3) == 1
    assert RATES.whole(0) == 0
    rates = [RATES.templates(live) for live in range(1, 13)]
    assert rates == sorted(rates)
    assert RATES.templates(11) >= RATES.whole(2)


@pytest.mark.parametrize("counts", [(1, 0, 0, 0), (40, 0, 10, 5), (3, 3, 3, 3)])
def test_a_large_job_is_judged_by_its_bound_about_as_by_a_plan(counts):
    job = paper_job(pipelines=100, limit=6, released=0)
    plan = make_plan(job, canonical_dead(job, counts), STAGGERED, Effort((MaxMoves(0),), "0 moves"))
    planned = min(1.0, plan.baseline / plan.period)
    assert Rates(job, 16).rerouted(counts) == pytest.approx(planned, rel=0.06)


@pytest.mark.parametrize("name", ["magic", "spares", "spares:x"])
def test_an_unknown_policy(name):
    with pytest.raises(UserError, match=f"policy '{name}': there is none; choose from recycle, "):
        make_policy(name, GROUND, RATES)
    with pytest.raises(UserError, match=f"policy '{name}': there is none"):
        parse_policies(f"recycle,{name}")


def test_every_policy_says_where_its_constants_are_from():
    assert parse_policies("recycle, oobleck,recycle") == ("recycle", "oobleck")
    for name in NAMES[:-2]:
        assert policy(name).source


def test_every_constant_can_be_set_and_says_where_it_is_from():
    assert set(constant_sets()[-1].items()) == set(SOURCES)
    for name in SOURCES:
        sets = constant_sets({name: 0.5})
        assert {each.items()[name] for each in sets} == {0.5}
    # With all that was measured given, nothing is left to be uncertain about.
    assert len(constant_sets(dict.fromkeys(SOURCES, 0.5))) == 1
    assert len(constant_sets()) == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("restart=5m", 300),
        ("checkpoint-interval = 1d", 86_400),
        ("layer-size=600MB", 6e8),
        ("bandwidth=2GBps", 2e9),
        ("bandwidth=2 GB", 2e9),
        ("bandwidth=200Gbps", 25e9),
        ("bandwidth=200gbps", 25e9),
        ("bandwidth=100 Mb", 12.5e6),
        ("bamboo-share=0.4", 0.4),
    ],
)
def test_a_constant_as_people_write_it(text, value):
    assert parse_constant(text)[1] == value


@pytest.mark.parametrize(
    "text",
    [
        "restart",
        "reboot=5m",
        "restart=soon",
        "layer-size=big",
        "layer-size=6MBps",
        "layer-size=6bytee",
        "bamboo-share=4GB",
    ],
)
def test_what_is_no_constant(text):
    with pytest.raises(UserError, match=r"give NAME=VALUE|is no duration|is no amount"):
        parse_constant(text)


@pytest.mark.parametrize("name", SOURCES)
def test_no_constant_is_out_of_its_range(name):
    most, what = MOST.get(name, MOST_SECONDS), "a number" if name in MOST else "seconds"
    assert constant_sets({name: most})[-1].items()[name] == most
    for value in (0.0, -1.0, 1.5 * most, math.inf, math.nan):
        with pytest.raises(UserError, match=re.escape(f"{name} is {value:g}: give {what} above 0, and {most:g} at")):
            constant_sets({name: value})
    assert MOST["bamboo-share"] == 1


def test_checkpoints_are_made_when_they_are_asked_for():
    given = constant_sets({"checkpoint-interval": 1800.0, "checkpoint-cost": 20.0, "restart": 300.0})[-1]
    checkpoints = policy("checkpoints", constants=given)
    assert (checkpoints.interval, checkpoints.cost, checkpoints.standing) == (1800.0, 20.0, 0.0)
    assert checkpoints.react(cluster_of(0), died=True).phases[0].seconds == 300.0


@pytest.mark.parametrize("name", ["recycle", "recycle+memory", "oobleck", "bamboo", "dropping", "gemini"])
def test_a_job_that_writes_checkpoints_pays_for_them_however_it_survives(name):
    given = constant_sets({"checkpoint-interval": 1800.0, "checkpoint-cost": 20.0})[-1]
    assert policy(name, constants=given).standing == pytest.approx(20 / 1800)
    assert policy(name, constants=given).checkpoint_interval == 1800.0
    assert policy(name).standing == 0.0
