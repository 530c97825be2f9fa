"""Runs whose store is etcd with a member on each host: any host may die or be cut off, the first one included."""

import pytest

from harness.etcd import etcd
from harness.etcd import missing as etcd_missing
from harness.forked import TRAINER
from harness.hosts import hosts, missing
from harness.started import TRAIN, Started, losses, small_run

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
    assert said.count("the first process does not answer; the run goes on") == 1, said
    assert losses(run) == undisturbed
