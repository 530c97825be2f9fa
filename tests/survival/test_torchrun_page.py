"""The commands of the pages on torchrun and on etcd, as they stand but for sizes, on hosts made of namespaces."""

import os
import re
import shlex
import shutil
import sys

import pytest

from harness.documents import block_with, changed
from harness.etcd import missing as etcd_missing
from harness.flag_runs import VARIABLES, make_dataset, needs_training, words_of
from harness.hosts import hosts, missing
from harness.paths import ROOT, python_path
from harness.started import Started

PAGE = ROOT / "docs" / "howto" / "torchrun.md"
STORE = ROOT / "docs" / "reference" / "store.md"
# Read when tests are collected, so that a page that loses one of them fails at once.
MAKE_SECRET = block_with(ROOT / "docs" / "reference" / "network.md", "openssl rand -hex")
UNDER_TORCHRUN = block_with(
    PAGE, "-m recycle.megatron pretrain_gpt.py ... \\\n    --pipeline-schedule recycle --use-tp"
)
EACH_RANK = block_with(PAGE, "RANK=$((8 * HOST + i))")
TRAINER = block_with(PAGE, "train job.toml")
PLAIN, ENCRYPTED, CERTIFICATES, USERS, ADDRESS = (
    block_with(STORE, each)
    for each in (
        "--listen-client-urls http://",
        "--listen-client-urls https://",
        "openssl req -x509",
        "etcdctl auth enable",
        "export RECYCLE_STORE=",
    )
)
ABSENT = " and ".join(each for each in ("etcdctl", "openssl") if shutil.which(each) is None)
WHY_NOT = missing() or etcd_missing() or (f"the page takes {ABSENT}" if ABSENT else "")
pytestmark = [
    needs_training,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
SIZES = {"--nproc-per-node 8": "--nproc-per-node 2"}
BY_HAND = {"0 1 2 3 4 5 6 7": "0 1", "8 * HOST": "2 * HOST", "WORLD_SIZE=16": "WORLD_SIZE=4"}
ITERATIONS = 40
SECRET = "PASSWORD"
MEMBERS = {"/var/tmp/etcd": "etcd-$HOSTNAME"}


class Site:
    """Hosts on which the page's commands are typed.

    Args:
        folder: that all hosts share.
        machines: the hosts, the page's ``host0`` first.
    """

    def __init__(self, folder, machines):
        self.folder, self.machines = folder, machines
        self.started = []
        # While it is there, ranks wait between two iterations for those that are missing.
        self.slow = folder / "slow"
        self.slow.touch()
        script, *arguments = words_of(make_dataset(folder / "text"), iterations=ITERATIONS, script="paced_gpt.py")
        self._words = {"pretrain_gpt.py ...": shlex.join([script, *arguments])}
        self._variables = {
            **VARIABLES,
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "PACE": str(self.slow),
        }

    def type(self, text, host, changes=None, **variables):
        """Begin a block of the page on a host, by its number."""
        text = changed(text, changes or {})
        for old, new in (self._words | {"/shared/": f"{self.folder}/"}).items():
            text = text.replace(old, new)
        text = re.sub(r"\bhost(\d)\b", lambda found: self.machines[int(found[1])].name, text)
        name = self.machines[host].name
        words = ["bash", "-ec", f"cd {self.folder}\n{text}"]
        self.started.append(Started(words, self.machines[host], {**self._variables, "HOSTNAME": name} | variables))
        return self.started[-1]

    def done(self, text, host, changes=None, **variables):
        """Have it run to its end."""
        typed = self.type(text, host, changes, **variables)
        assert typed.ended() == 0, typed.output
        return typed.output


@pytest.fixture
def site(tmp_path):
    with hosts(3) as machines:
        made = Site(tmp_path, machines)
        yield made
        for each in made.started:
            each.kill()


def test_a_job_of_torchrun_outlives_a_host_which_comes_back_elsewhere(site):
    site.done(MAKE_SECRET, 0)
    first, second = (site.type(UNDER_TORCHRUN, each, SIZES, i=str(each)) for each in (0, 1))
    second.wait_for(" iteration        3/", 400)
    site.machines[1].crash()
    first.wait_for("training goes on with 2 servers", 400)
    third = site.type(UNDER_TORCHRUN, 2, SIZES, i="1")
    first.wait_for("training goes on with 4 servers", 400)
    site.slow.unlink()
    assert first.ended(400) == 0, first.output
    assert third.ended(60) == 0, third.output


def outlive(site, host, **variables):
    """Start two pipelines by hand, on a host each, and lose one of the hosts."""
    site.done(MAKE_SECRET, 0)
    store = {"--use-tp-pp-dp-mapping": "--use-tp-pp-dp-mapping --recycle-store $STORE"} if "STORE" in variables else {}
    both = [site.type(EACH_RANK, each, BY_HAND | store, HOST=str(each), **variables) for each in (0, 1)]
    both[1].wait_for(" iteration        3/", 400)
    site.machines[host].crash()
    left = both[1 - host]
    left.wait_for("training goes on with 2 servers", 400)
    return left


def serve(site, block):
    """Start a member of etcd on each host."""
    for host in range(3):
        site.type(block, host, MEMBERS)


def test_ranks_that_were_started_by_hand_come_back_on_another_host(site):
    left = outlive(site, 1)
    back = site.type(EACH_RANK, 2, BY_HAND, HOST="1")
    left.wait_for("training goes on with 4 servers", 400)
    site.slow.unlink()
    assert [each.ended(400) for each in (left, back)] == [0, 0], left.output


def test_with_etcd_the_first_host_may_die_with_a_member(site):
    serve(site, PLAIN)
    left = outlive(site, 0, STORE="etcd://host0,host1,host2")
    site.slow.unlink()
    assert left.ended(400) == 0, left.output


def test_with_certificates_and_a_password_as_well(site):
    site.done(CERTIFICATES, 0)
    serve(site, ENCRYPTED)
    users = {"user add root": f"user add root:{SECRET}", "user add recycle": f"user add recycle:{SECRET}"}
    wait = "until etcdctl --endpoints https://host0:2379 --cacert ca.pem endpoint health; do sleep 0.2; done"
    site.done(f"{wait}\n{USERS}", 0, users)
    url = site.done(f'{ADDRESS}echo "$RECYCLE_STORE"', 0).strip()
    left = outlive(site, 0, RECYCLE_STORE=url)
    site.slow.unlink()
    assert left.ended(400) == 0, left.output


def test_servers_of_recycle_train_are_started_by_torchrun(site):
    (site.folder / "job.toml").write_text("pipelines = 2\nstages = 2\nmicro_batches = 2\n")
    block = changed(TRAINER, SIZES)
    both = [site.type(block, each, i=str(each)) for each in (0, 1)]
    assert [each.ended(400) for each in both] == [0, 0], both[0].output
