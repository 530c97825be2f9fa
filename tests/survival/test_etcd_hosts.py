"""Runs whose store is etcd with a member on each host: any host may die or be cut off, the first one included."""

import pytest

from harness.etcd import EtcdMember, etcd
from harness.etcd import missing as etcd_missing
from harness.forked import TRAINER
from harness.hosts import hosts, missing
from harness.started import TRAIN, Started, count_iterations, losses, newest_view, small_run, wait_until

WHY_NOT = missing() or etcd_missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ITERATIONS = 60


def words(folder, *more, iterations=ITERATIONS):
    return [*TRAIN, *small_run(folder / "run", 3, 1, iterations, *more)]


@pytest.fixture(scope="module")
def undisturbed(shared_runs):
    """The losses of a run on one machine that nothing befell."""

    def make(folder):
        run = Started(words(folder), imported=TRAINER)
        assert run.ended() == 0, run.output
        return losses(folder / "run")

    return shared_runs.run(__name__, make, dict[int, list[float]]).left


@pytest.fixture
def served(start_each, tmp_path):
    """Three hosts, each with a member and a server, and the run's processes on them."""
    with hosts(3) as three, etcd(3, hosts=three) as cluster:
        arguments = words(tmp_path, "--store", cluster.url, "--checkpoint-every", "5")
        yield three, start_each(arguments, three), tmp_path / "run"


def test_a_run_goes_on_when_its_first_host_dies_with_a_member_of_etcd(served, undisturbed):
    three, ranks, run = served
    three[0].crash()
    for rank in ranks[1:]:
        assert rank.ended() == 0, rank.output
    said = ranks[1].output + ranks[2].output
    assert said.count("the first process is gone; the run goes on") == 1, said
    assert losses(run) == undisturbed


def test_what_all_members_have_lost_is_written_again_and_the_first_host_may_die_after_that(start_each, tmp_path):
    with hosts(3) as three, etcd(3, hosts=three) as cluster:
        arguments = words(tmp_path, "--store", cluster.url, iterations=100_000)
        start_each(arguments, three)
        for act in (EtcdMember.kill, EtcdMember.start_anew):
            for member in cluster.members:
                act(member)
        run = tmp_path / "run"
        for said in (b"the store is lost", b"the store is back"):
            wait_until(lambda said=said: all(said in each.read_bytes() for each in run.glob("events/W?_0.jsonl")))
        assert list(run.glob("checkpoints/step-*"))
        three[0].crash()
        wait_until(lambda: newest_view(run).servers == ["W1_0", "W2_0"])
        made = count_iterations(run, "W1_0")
        wait_until(lambda: count_iterations(run, "W1_0") > made + 2)
