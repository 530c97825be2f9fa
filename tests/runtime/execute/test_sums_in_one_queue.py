"""Where all that a device starts runs in one queue, no sum holds up a transfer, though it begins before its turn."""

import threading
from datetime import timedelta
from unittest import mock

import pytest
import torch
from torch.distributed import HashStore

from harness.emulated_stage import EmulatedStage, Sleeper
from harness.examples import QUICK, placed_job
from harness.stand_in import Library
from harness.stand_in_transport import connects_beside
from recycle.control.membership.view import View
from recycle.holding import placed
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recorder import Recorder
from recycle.runtime.errors import InstructionFailed, ViewBroken
from recycle.runtime.execute import worker
from recycle.runtime.execute.program import Program
from recycle.runtime.execute.stage import Redo
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import NetworkOptions

LONG = timedelta(seconds=100)
JOB = placed_job("interleaved:2")
SIZE = 8
ITERATIONS = 3


class Summed:
    """Sums a number for each chunk, and notes how many sums begin before their turn."""

    confirms = True

    def __init__(self, network):
        self.early = 0
        self._network = network
        self._under_way = {}

    def collect(self):
        pass

    def validate(self):
        self.early += len(self._under_way)
        return Redo.NOTHING

    def start_reduction(self, chunk):
        if chunk not in self._under_way:
            total = torch.full((SIZE,), chunk + 1.0)
            self._under_way[chunk] = total, self._network.peers.start_sum(total)

    def reduce(self, chunk, *, last):
        self.start_reduction(chunk)
        total, reduction = self._under_way.pop(chunk)
        reduction.wait()
        peers = self._network.view.peers(self._network.server.stage)
        assert torch.equal(total, torch.full((SIZE,), (chunk + 1.0) * len(peers)))

    def step(self, chunk, *, last):
        return Redo.NOTHING


def run(plan, patience):
    """Make iterations of a plan in one queue; gives the updates of the servers that have come to their end in time."""
    library, store, ended = Library(one_queue=True), HashStore(), []
    store.set_timeout(LONG)
    connect = connects_beside(library, library.apart())
    networks = []

    def live(server):
        network = connect(store, View.of(plan), server, NetworkOptions(LONG, LONG))
        networks.append(network)
        stages = [EmulatedStage(JOB, server, each, 0.0, Sleeper(), SIZE) for each in placed(JOB, server).chunks]
        update = Summed(network)
        runs = Worker(plan, stages, update, network, Recorder(server))
        for step in range(ITERATIONS):
            try:
                runs.run(step)
            except (ViewBroken, InstructionFailed):
                # It was given up; what it got in place of a transfer is checked by the stage.
                return
        ended.append(update)

    threads = [threading.Thread(target=live, args=(each,), daemon=True) for each in plan.programs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(patience)
    found = list(ended)
    for each in networks:
        each.unblock()
    for each in threads:
        each.join(100)
    return found


@pytest.mark.parametrize("failed", [(), (Server(0, 1),), (Server(1, 0),)])
@pytest.mark.parametrize("backward", ["fused", "split"])
def test_sums_begin_behind_the_last_transfer(backward, failed):
    plan = make_plan(JOB, failed, Mode(backward, "global"), QUICK)
    updates = run(plan, 100)
    assert len(updates) == len(plan.programs)
    assert all(each.early == len(JOB.chunks[0]) * ITERATIONS for each in updates)


def test_begun_before_it_they_hold_it_up():
    """In a plan around a dead server, somebody waits for a send that waits for a sum."""
    plan = make_plan(JOB, [Server(1, 0)], Mode("fused", "global"), QUICK)
    with mock.patch.object(worker, "Program", lambda instructions, early, _: Program(instructions, early)):
        assert run(plan, 2) == []
