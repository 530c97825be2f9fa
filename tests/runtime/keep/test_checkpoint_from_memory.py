"""Keepers in processes of their own write a version to disk, whoever of them and of those who ask for it is lost."""

import multiprocessing
import os
import signal
from contextlib import contextmanager, suppress
from itertools import product

import pytest
import torch

from harness.digests import data_digests
from harness.started import wait_until
from recycle.control.board.joinfile import new_token
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.checkpoint_folders import Manifest, checkpoints, find_damage, folder_of
from recycle.runtime.keep import checkpoint_writer
from recycle.runtime.keep.checkpoint_from_memory import CheckpointsFromMemory, Target, WritingKeeper
from recycle.runtime.keep.checkpoint_writer import CheckpointWriter
from recycle.runtime.keep.keeper_copies import KeeperCopies, KnownKeepers
from recycle.runtime.step.checkpoint import VERSION, set_aside, write_shard
from recycle.state.channel import Write
from recycle.state.client import KeeperClient
from recycle.state.errors import Refused
from recycle.state.keeper import listen_to_hosts, serve
from recycle.state.redundancy import Redundancy

HERE = "127.0.0.1"
STAGES, PEERS, EVERY = 2, 2, 2
SERVERS = [Server(pipeline, stage) for pipeline, stage in product(range(PEERS), range(STAGES))]
FORK = multiprocessing.get_context("fork")


class Stage:
    """Versions of one rank's part of a stage, by the names that the trainer gives them."""

    shards = None

    def __init__(self, number, rank=0):
        self.number, self.rank, self.newest, self.undone = number, rank, 0, 0

    def state(self, prefix=None):
        prefix = f"{self.number}." if prefix is None else prefix
        value = self.newest + 10 * self.number + 100 * self.rank
        return {
            f"parameter/{prefix}layers.0.weight": torch.arange(3_001, dtype=torch.float32) * (value + 1),
            f"optimizer/step/{prefix}layers.0.weight": torch.tensor(float(value)),
            f"optimizer/exp_avg/{prefix}layers.0.weight": torch.full((7, 3), value + 0.5),
        }


class Job:
    """Two stages of two peers, which put their parts with keepers.

    Args:
        root: where checkpoints are.
        hosts: how many have keepers, each of which holds what the redundancy says.
        ranks: of each server.
    """

    def __init__(self, root, hosts, redundancy, ranks):
        self.root, self.redundancy, self.token, self.ranks = root, redundancy, new_token(), ranks
        self.keepers, self.addresses = [], ()
        for place in range(hosts):
            with listen_to_hosts(HERE) as listener:
                self.addresses += ((f"host {place}", listener.getsockname()),)
                self.keepers.append(self.start(listener))
        self.told = []
        self.there = True
        self.clients = clients = [KeeperClient(address, self.token, name) for name, address in self.addresses]
        view = View.among(SERVERS)
        self.servers = []
        for server in SERVERS:
            first = SERVERS.index(server)
            own = [clients[(first + place) % hosts] for place in range(redundancy.pieces)]
            known = KnownKeepers(own, redundancy, [each for each in clients if each not in own], every=EVERY)
            for rank in range(ranks):
                stage, rule = Stage(server.stage, rank), {"rank": ServerRank(rank, ranks)}
                copies = KeeperCopies(lambda known=known: known, server, STAGES, stage, lambda: view, self.tell, **rule)
                self.servers.append((stage, copies))

    def start(self, listener):
        process = FORK.Process(
            target=serve,
            args=([listener], self.token, 1 << 26),
            kwargs={"writer": CheckpointWriter(self.token, self.root)},
            daemon=True,
        )
        process.start()
        return process

    def train(self, iterations):
        for _ in range(iterations):
            for stage, copies in self.servers:
                copies.before(stage.newest, Instruction(Op.REDUCE, 0))
                stage.newest += 1

    def writing_keepers(self):
        if not self.there:
            raise StoreLost("nobody answers")
        return [
            WritingKeeper(KeeperClient(address, self.token, name), self.addresses, name)
            for name, address in self.addresses
        ]

    def tell(self, *said):
        self.told.append(said)

    @property
    def names(self):
        """Of all that there is where checkpoints are."""
        return sorted(each.name for each in self.root.iterdir())

    def checkpoints(self):
        """What a server does that comes to lead."""
        # One is kept, and the one before it, to which servers may still have to go back.
        target = Target(
            self.root, STAGES, self.redundancy.pieces, 1, "stage-{}/tensor-{}".format, self.manifest, self.ranks
        )
        return CheckpointsFromMemory(target, self.writing_keepers, self.tell)

    def manifest(self, step):
        shards = tuple(f"stage-{stage}/tensor-{rank}" for stage in range(STAGES) for rank in range(self.ranks))
        return Manifest(VERSION, step, {}, shards)

    def require_written(self, step, folder):
        """The checkpoint of a step has the same files, to the bit, as one that trainers write."""
        assert find_damage(folder_of(self.root, step)) == ""
        assert sorted(each.name for each in folder_of(self.root, step).iterdir()) == [
            "checkpoint.json",
            "stage-0",
            "stage-1",
        ]
        for number, rank in product(range(STAGES), range(self.ranks)):
            stage = Stage(number, rank)
            stage.newest = step
            written = folder / f"{number}-{rank}"
            write_shard(written, stage.state(prefix=""))
            found = folder_of(self.root, step) / f"stage-{number}/tensor-{rank}"
            assert data_digests(found) == data_digests(written)


@contextmanager
def training(root, hosts, redundancy, ranks=1):
    job = Job(root, hosts, Redundancy.parse(redundancy), ranks)
    try:
        yield job
    finally:
        for each in job.clients:
            each.close()
        for each in job.keepers:
            each.kill()
            each.join()


def make_checkpoint(checkpoints, now, step):
    """To its end, what is due."""
    checkpoints.look(now, step, leads=True)
    checkpoints.finish()


@pytest.mark.parametrize(("hosts", "redundancy", "ranks"), [(2, "copies=2", 2), (3, "parity=2+1", 1)])
def test_what_keepers_write_is_what_trainers_would_have_written_and_training_goes_on(
    tmp_path, hosts, redundancy, ranks
):
    with training(tmp_path / "run", hosts, redundancy, ranks) as job:
        checkpoints = job.checkpoints()
        job.train(2)
        checkpoints.look(2, 2, leads=True)
        # It is not whole with keepers yet, and when it is, training is far ahead.
        job.train(9)
        checkpoints.finish()
        job.require_written(2, tmp_path / "trainers")
        assert [kind for kind, _ in job.told] == ["memory"], job.told
        make_checkpoint(checkpoints, 11, 10)
        job.require_written(10, tmp_path / "trainers")
        assert job.names == ["step-00000002", "step-00000010"]


def test_what_is_due_while_another_one_is_being_written_is_left_out_and_said(tmp_path, monkeypatch):
    go = tmp_path / "go"

    def write(folder, state):
        wait_until(go.exists)
        write_shard(folder, state)

    monkeypatch.setattr(checkpoint_writer, "write_shard", write)
    with training(tmp_path / "run", 2, "copies=2") as job:
        checkpoints = job.checkpoints()
        job.train(3)
        checkpoints.look(3, 2, leads=True)
        for step in (4, 5):
            job.train(1)
            checkpoints.look(step, 4, leads=True)
        assert job.told == [("warning", "there is no checkpoint of step 4: that of step 2 is still being written")]
        go.touch()
        checkpoints.finish()
        job.train(2)
        make_checkpoint(checkpoints, 7, 6)
        job.require_written(2, tmp_path / "trainers")
        job.require_written(6, tmp_path / "trainers")
        assert job.names == ["step-00000002", "step-00000006"]


def test_another_keeper_writes_for_one_that_dies_in_it(tmp_path, monkeypatch):
    died = tmp_path / "died"

    def die(folder, state):
        with suppress(FileExistsError):
            died.touch(exist_ok=False)
            folder.mkdir(parents=True)
            (folder / "half").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        write_shard(folder, state)

    monkeypatch.setattr(checkpoint_writer, "write_shard", die)
    with training(tmp_path / "run", 3, "copies=2") as job:
        job.train(4)
        checkpoints = job.checkpoints()
        make_checkpoint(checkpoints, 4, 2)
        assert sum(each.exitcode == -signal.SIGKILL for each in job.keepers) == 1
        job.require_written(2, tmp_path / "trainers")
        assert "another keeper does" in str(job.told)
        assert job.names == ["step-00000002"]


def test_one_that_was_set_aside_is_written_again(tmp_path):
    with training(tmp_path / "run", 2, "copies=2") as job:
        saving = job.checkpoints()
        for step in (2, 4):
            job.train(step + 1 - job.servers[0][0].newest)
            make_checkpoint(saving, step + 1, step)
        set_aside(folder_of(job.root, 4))
        for stage, _ in job.servers:
            stage.newest = 2
            stage.undone += 3
        saving.look(2, 2, leads=True)
        job.train(3)
        make_checkpoint(saving, 5, 4)
        assert job.names == ["damaged-step-00000004", "step-00000002", "step-00000004"]


def test_the_next_one_to_lead_takes_up_what_the_last_one_has_not_finished(tmp_path):
    with training(tmp_path / "run", 2, "copies=2") as job:
        first, second = job.checkpoints(), job.checkpoints()
        job.train(2)
        first.look(2, 2, leads=True)
        first.look(2, 2, leads=False)
        job.train(4)
        assert checkpoints(job.root) == []
        second.look(6, 2, leads=True)
        second.finish()
        job.require_written(2, tmp_path / "trainers")


def test_a_version_that_cannot_be_written_is_a_warning_and_leaves_the_one_before(tmp_path, monkeypatch):
    with training(tmp_path / "run", 2, "copies=2") as job:
        checkpoints = job.checkpoints()
        job.train(3)
        make_checkpoint(checkpoints, 3, 2)
        # Of the next one a part is lost, with all that have it.
        job.train(2)
        for client in (each.client for each in job.writing_keepers()):
            for copy in client.copies():
                if copy.part.version == 4 and copy.part.stage == 1 and copy.part.number == 0:
                    client.drop(copy.part)
        make_checkpoint(checkpoints, 5, 4)
        assert "step 4 is not written from memory: keepers do not have it as a whole" in job.told[-1][1]
        # Who cannot say whether it is on the right side of a cut does not make one either.
        job.train(2)
        job.there = False
        make_checkpoint(checkpoints, 7, 6)
        assert "step 6 is not written from memory: nobody answers" in job.told[-1][1]
        assert job.names == ["step-00000002"]
        job.require_written(2, tmp_path / "trainers")


@pytest.mark.parametrize("folder", ["elsewhere", "run/../elsewhere", "run/link/part", "run-2", "."])
def test_a_keeper_writes_nowhere_but_in_the_folder_of_its_run(tmp_path, folder):
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path)
    asked = Write(0, 0, 1, str(tmp_path / folder), "", 1, (), "host")
    with pytest.raises(Refused, match=r"is not in .*/run, where this run's keepers write"):
        CheckpointWriter("token", run).write(asked)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]
