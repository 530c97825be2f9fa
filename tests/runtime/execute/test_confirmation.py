"""What one server gives up ends at its partners with anything, and in silence: nothing of it is ever trained on."""

import threading
import time
from datetime import timedelta
from unittest import mock

import pytest
from torch.distributed import HashStore

from harness.examples import QUICK, paper_job
from harness.stand_in import Library
from harness.stand_in_run import CountingStage, is_whole
from harness.stand_in_transport import connects_beside, is_large
from recycle.control.view import View
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recorder import Recorder
from recycle.runtime.emulate.stage import EmulatedUpdate, Sleeper
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.transport import Transport
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.ordered.communicators import OrderedGroup

LONG = timedelta(seconds=100)
JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
PLAN = make_plan(JOB, (), Mode(), QUICK)
STEPPED = "stepped"
LATE, LATER = 0.01, 0.1
"""Seconds by which others come later to an operation than a server that gives up all after its own one of it, and its
neighbour to what it sends if it gives up all when it has stepped."""

HEARD = 0.3
"""Seconds after which the others hear of it."""

OPERATIONS = 5
"""That a server gives: two sends, two receives, and the sum of its gradients."""


class Server:
    """A server in a thread, which makes one iteration.

    Args:
        server: which.
        place: after which of its operations it gives up all, or that it does when it has stepped; None for never.

    Attributes:
        wrong: what it was given that was not right.
        stepped: whether it has stepped.
    """

    def __init__(self, server, connect, store, place=None):
        self.server = server
        self.wrong = []
        self.stepped = False
        self.network = None
        self._connect, self._store = connect, store
        self._place = place
        self._given = 0
        self.thread = threading.Thread(target=self._live, daemon=True)

    def _live(self):
        self.network = self._connect(self._store, View.of(PLAN), self.server, NetworkOptions(LONG, LONG))
        # As NCCL's says, in whatever number of queues it runs.
        self.network._near.one_queue = True
        (number,) = JOB.chunks[self.server.stage]
        stage = CountingStage(JOB, self.server, number, 0.0, Sleeper(), 8)
        update = EmulatedUpdate(JOB, True, self.network, 0.0, Sleeper())
        update.reduce = self._reduce
        self._stage = stage
        worker = Worker(PLAN, [stage], update, self.network, Recorder(self.server), hooks=[self])
        threading.current_thread().server = self
        try:
            worker.run(0)
        except ViewBroken:
            return

    def _reduce(self, _, *, last):
        total = self._stage.counts.clone()
        self.network.peers.sum(total)
        self.wrong += self._stage.wrong
        if not is_whole(total):
            self.wrong.append(total.tolist())

    def before(self, _, __):
        pass

    def after(self, _, instruction, __):
        if instruction.op is Op.STEP:
            self.stepped = True
            if self._place == STEPPED:
                self.network.unblock()

    def gave(self):
        """It has given an operation to the stand-in."""
        self._given += 1
        if self._given == self._place:
            self.network.unblock()


def steps_that_count(server, place, one_queue):
    """Where one server gives up all after an operation: what others were given wrong, if every stage has stepped."""
    library = Library(one_queue)
    store = HashStore()
    store.set_timeout(LONG)
    connect = connects_beside(library, library.apart())
    servers = [Server(each, connect, store, place if each == server else None) for each in PLAN.programs]
    start = OrderedGroup.start

    def counted(group, kind, tensor):
        giver = getattr(threading.current_thread(), "server", None)
        if giver is None or not is_large(tensor):
            return start(group, kind, tensor)
        # An operation to which all have come is over, so the others are late.
        if place == STEPPED:
            time.sleep(LATER * (kind == "receive" and giver.server.stage != server.stage))
        else:
            time.sleep(LATE * (giver.server != server))
        operation = start(group, kind, tensor)
        giver.gave()
        return operation

    with mock.patch.object(OrderedGroup, "start", counted):
        for each in servers:
            each.thread.start()
        next(each for each in servers if each.server == server).thread.join(100)
        # Nobody has told the others yet, and soon somebody does.
        end = time.monotonic() + HEARD
        for each in servers:
            each.thread.join(max(0.0, end - time.monotonic()))
        for each in servers:
            each.network.unblock()
        for each in servers:
            each.thread.join(100)
            assert not each.thread.is_alive()
    stepped = [each for each in servers if each.stepped]
    if {each.server.stage for each in stepped} != set(range(JOB.depth)):
        return []
    return [wrong for each in stepped for wrong in each.wrong]


def everywhere(one_queue, *places):
    return [
        wrong
        for server in PLAN.programs
        for place in places or (*range(1, OPERATIONS + 1), STEPPED)
        for wrong in steps_that_count(server, place, one_queue)
    ]


@pytest.mark.parametrize("one_queue", [False, True])
def test_what_was_given_up_is_in_no_version_that_every_stage_has(one_queue):
    assert everywhere(one_queue) == []


@pytest.mark.parametrize("one_queue", [False, True])
def test_without_asking_the_peers_it_would_be(one_queue):
    with mock.patch.object(Worker, "_confirm"):
        assert everywhere(one_queue, OPERATIONS) != []


def test_if_a_server_stepped_before_its_sends_were_over_it_would_be():
    with mock.patch.object(Transport, "finish"):
        assert everywhere(False, STEPPED) != []
