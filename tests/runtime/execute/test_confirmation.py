"""What one server gives up ends at its partners with anything, and in silence: nothing of it is ever trained on."""

import threading
import time
from datetime import timedelta
from unittest import mock

import pytest
from torch.distributed import HashStore

from harness.emulated_stage import EmulatedUpdate, Sleeper
from harness.examples import QUICK, paper_job
from harness.stand_in import Library
from harness.stand_in_run import CountingStage, is_whole
from harness.stand_in_transport import connects_beside, is_large
from recycle.control.membership.view import View
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recorder import Recorder
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.p2p import P2PTransfers
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.nccl.communicators import OrderedGroup
from recycle.runtime.net.network import NetworkOptions

LONG = timedelta(seconds=100)
JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
PLAN = make_plan(JOB, (), Mode(), QUICK)
STEPPED = "stepped"
SHORT, SURELY = 0.1, 60.0
"""Seconds for which partners wait for a server to give up all: where it may be that it cannot, and where it will."""

OPERATIONS = (5, 6)
"""That a server of each stage gives: two sends, two receives, in the last stage the sum of the losses, and that of its
gradients."""


class Server:
    """A server in a thread, which makes one iteration.

    Args:
        server: which.
        place: after which of its operations it gives up all, or that it does when it has stepped; None for never.

    Attributes:
        wrong: what it was given that was not right.
        stepped: whether it has stepped.
        given: how many operations it has given to the stand-in.
    """

    def __init__(self, server, connect, store, place=None):
        self.server = server
        self.wrong = []
        self.stepped = False
        self.gave_up = threading.Event()
        self.network = None
        self._connect, self._store = connect, store
        self._place = place
        self.given = 0
        self.thread = threading.Thread(target=self._live, daemon=True)

    def _live(self):
        self.network = self._connect(self._store, View.of(PLAN), self.server, NetworkOptions(LONG, LONG))
        # As NCCL's says, in whatever number of queues it runs.
        self.network.one_queue = True
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
                self._give_up()

    def gave(self):
        """It has given an operation to the stand-in."""
        self.given += 1
        if self.given == self._place:
            self._give_up()

    def _give_up(self):
        self.network.unblock()
        self.gave_up.set()


def steps_that_count(server, place, one_queue, patience):
    """Where one server gives up all after an operation: what others were given wrong, if every stage has stepped."""
    library = Library(one_queue)
    store = HashStore()
    store.set_timeout(LONG)
    connect = connects_beside(library, library.apart())
    servers = [Server(each, connect, store, place if each == server else None) for each in PLAN.programs]
    first = next(each for each in servers if each.server == server)
    carry_out = OrderedGroup.carry_out

    def counted(group, calls):
        ((kind, tensor, _),) = calls
        giver = getattr(threading.current_thread(), "server", None)
        if giver is None or not is_large(tensor):
            return carry_out(group, calls)
        # An operation to which all have come is over, so partners are late for the last one.
        neighbour = giver.server.stage != server.stage
        last = giver.given + 1 == OPERATIONS[giver.server.stage]
        if giver is not first and (neighbour and kind == "receive" if place == STEPPED else last and not neighbour):
            first.gave_up.wait(patience)
        operation = carry_out(group, calls)
        giver.gave()
        return operation

    with mock.patch.object(OrderedGroup, "carry_out", counted):
        for each in servers:
            each.thread.start()
        first.thread.join(100)
        # Nobody has told the others yet, and soon somebody does.
        end = time.monotonic() + patience
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


@pytest.mark.parametrize("one_queue", [False, True])
def test_what_was_given_up_is_in_no_version_that_every_stage_has(one_queue):
    for server in PLAN.programs:
        for place in (*range(1, OPERATIONS[server.stage] + 1), STEPPED):
            assert steps_that_count(server, place, one_queue, SHORT) == []


@pytest.mark.parametrize("one_queue", [False, True])
@pytest.mark.parametrize("server", PLAN.programs)
def test_without_asking_the_peers_it_would_be(one_queue, server):
    with mock.patch.object(Worker, "_confirm"):
        assert steps_that_count(server, OPERATIONS[server.stage], one_queue, SURELY) != []


@pytest.mark.parametrize("server", [each for each in PLAN.programs if each.stage == JOB.depth - 1])
def test_if_a_server_stepped_before_its_sends_were_over_it_would_be(server):
    with mock.patch.object(P2PTransfers, "finish"):
        assert steps_that_count(server, STEPPED, False, SURELY) != []
