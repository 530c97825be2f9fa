import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.faults.errors import FaultError
from recycle.faults.file import check_faults
from recycle.faults.menu import Faults, Kind
from recycle.faults.random_faults import random_faults
from tests.strategies import failed_sets, jobs

SEEDS = st.integers(0, 2**32)
REPAIRS = st.none() | st.floats(0.01, 1000)


@st.composite
def jobs_with_dead(draw):
    job = draw(jobs())
    return job, draw(failed_sets(job))


@given(jobs_with_dead(), SEEDS, st.floats(0.5, 100), REPAIRS)
def test_no_stage_is_emptied_and_times_are_in_order(case, seed, mtbf, repair):
    job, dead = case
    faults = random_faults(job, mtbf, seed, 100.0, repair, dead).entries
    check_faults(faults, job, 1, dead)
    dead = set(dead)
    for fault in faults:
        (server,) = fault.servers
        assert (server in dead) is (fault.kind is Kind.JOIN)
        if fault.kind is Kind.JOIN:
            dead.remove(server)
        else:
            assert fault.kind is Kind.KILL
            dead.add(server)
        job.dead_servers(dead).require_peers()
    times = [fault.at for fault in faults]
    assert times == sorted(times)
    assert all(0 <= time <= 100 for time in times)


@given(jobs(), SEEDS, REPAIRS)
def test_a_seed_gives_the_same_faults(job, seed, repair):
    assert random_faults(job, 5.0, seed, 60.0, repair) == random_faults(job, 5.0, seed, 60.0, repair)


def test_another_seed_gives_others():
    assert random_faults(paper_job(), 5.0, 1, 60.0) != random_faults(paper_job(), 5.0, 2, 60.0)


def test_kills_come_as_often_as_asked_for_and_repairs_take_as_long():
    faults = random_faults(paper_job(), 10.0, 1, 50_000.0, 3.0).entries
    kills = {}
    waits = []
    for fault in faults:
        if fault.kind is Kind.KILL:
            kills[fault.servers] = fault.at
        else:
            waits.append(fault.at - kills[fault.servers])
    count = sum(fault.kind is Kind.KILL for fault in faults)
    assert 0.9 < count / 5000 < 1.1
    assert 0.9 < sum(waits) / len(waits) / 3.0 < 1.1


def test_without_repair_one_pipelines_worth_is_left():
    faults = random_faults(paper_job(), 1.0, 7, 10_000.0).entries
    assert len(faults) == 8


@pytest.mark.parametrize("mtbf", [0.0, -1.0, float("nan"), float("inf")])
def test_times_without_sense_are_refused(mtbf):
    with pytest.raises(FaultError, match=r"mtbf is .* give a number of seconds above 0"):
        random_faults(paper_job(), mtbf, 1, 60.0)
    with pytest.raises(FaultError, match=r"mean time to repair is .* above 0"):
        random_faults(paper_job(), 1.0, 1, 60.0, mtbf)


def test_endless_lists_are_refused():
    with pytest.raises(FaultError, match=r"mtbf is 0.001 s, over 16 min 40 s: at most 100000 failures; make it longer"):
        random_faults(paper_job(), 0.001, 1, 1000.0)


@given(seed=st.integers(0, 1000), live=st.sets(st.sampled_from(paper_job().servers())))
def test_whoever_is_back_late_a_kill_leaves_every_stage_its_last_server(seed, live):
    job = paper_job()
    faults = random_faults(job, 1.0, seed, 20.0, 5.0)
    for fault in faults.entries:
        (server,) = fault.servers
        why = faults.why_left_out(fault, job, live)
        peers = [each for each in live if each.stage == server.stage and each != server]
        if fault.kind is Kind.KILL:
            assert why == ("" if peers else f"no other live server of stage {server.stage} is left")
        else:
            assert why == ("it is alive" if server in live else "")
        assert Faults((fault,)).why_left_out(fault, job, live) == ""
