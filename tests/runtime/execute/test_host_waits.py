"""Where the host waits in an iteration: a worker over a device that does nothing before somebody waits for it."""

from contextlib import nullcontext

import pytest

from harness.examples import QUICK, paper_job
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recorder import Recorder
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.execute.executor import RUN_AHEAD
from recycle.runtime.execute.stage import Redo
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.stop_line import NO_LINE
from tests.runtime.execute.test_link_order import Stage

JOB = paper_job(pipelines=2, stages=3, micro_batches=6, released=0)
PLAN = make_plan(JOB, (), Mode(), QUICK)


class IdleDevice:
    """Does what it was given, in that order, as far as somebody waits for it; a MomentClock.

    Attributes:
        given: how many things.
        computed: how many of them compute.
        waits: for what, and how many computations were given then.
    """

    def __init__(self):
        self.given = self.computed = self._done = 0
        self.waits = []

    def give(self, what):
        self.given += 1
        self.computed += what == "computation"
        return Given(self, what, self.given)

    def mark(self):
        return Given(self, "mark", self.given)

    def times(self, marks):
        return [each.place for each in marks]

    def wait(self, what, place):
        if self._done < place:
            self._done = place
            self.waits.append((what, self.computed))


class Given:
    """Something that a device was given, a transfer perhaps."""

    def __init__(self, device, what, place):
        self._device, self._what, self.place = device, what, place

    def precede(self):
        return False

    def wait(self):
        self._device.wait(self._what, self.place)


class OnDevice:
    """A network, a link and a group, whose tensors a device carries; what is summed at once lies in host memory."""

    one_queue = True
    ends_are_right = False
    line = NO_LINE

    def __init__(self, device, view, server):
        self._device = device
        self.view, self.server = view, server
        self.peers = self

    def link(self, _):
        return self

    def apart(self, _):
        return nullcontext()

    def send(self, *_):
        return self._device.give("send")

    def receive(self, *_):
        return self._device.give("receive")

    def start_sum(self, _):
        return self._device.give("sum")

    def group(self, *_, **__):
        return self

    def sum(self, _):
        pass


class Computing(Stage):
    """Has a device compute."""

    def __init__(self, device, number):
        super().__init__(number, JOB.depth)
        self._device = device

    def forward(self, *given):
        self._device.give("computation")
        return super().forward(*given)

    def input_gradient(self, *given):
        self._device.give("computation")
        return super().input_gradient(*given)

    def weight_gradient(self, _):
        self._device.give("computation")

    def take_losses(self):
        """None is summed."""


class Update:
    """Sums something over the peers."""

    waits = confirms = False

    def __init__(self, network):
        self._network = network

    def collect(self):
        pass

    def reduce(self, _, *, last):
        self._network.start_sum(None).wait()

    def step(self, _, *, last):
        return Redo.NOTHING

    def validate(self):
        return Redo.NOTHING


def waits_of(server):
    """Where the host waits in one iteration of a server, and how many computations that has."""
    device = IdleDevice()
    network = OnDevice(device, View.of(PLAN), server)
    worker = Worker(
        PLAN, [Computing(device, server.stage)], Update(network), network, Recorder(server, clock=device), hooks=()
    )
    worker.run(0)
    return device.waits, device.computed


def test_the_host_waits_for_what_is_two_computations_behind_and_twice_at_the_end():
    for stage in range(JOB.depth):
        waits, computed = waits_of(Server(0, stage))
        ahead = [(what, begun) for what, begun in waits if what in ("mark", "receive")]
        # For what the next computation is behind, that has to come first; and at the end for what came last.
        assert {begun for _, begun in ahead} <= set(range(RUN_AHEAD, computed + 1))
        assert len(set(ahead)) == len(ahead), "nothing is waited for twice before the next computation"
        assert len(ahead) <= 2 * (computed - RUN_AHEAD + 1)
        others = [(what, begun) for what, begun in waits if (what, begun) not in ahead]
        assert others in ([("send", computed), ("sum", computed)], [("sum", computed)])


class Ending(Update):
    """The view ends in one of its methods."""

    def __init__(self, network, where):
        super().__init__(network)
        setattr(self, where, self._end)

    def _end(self, *_, **__):
        raise ConnectionLost("W1_0 is gone")


@pytest.mark.parametrize("where", ["reduce", "validate", "step"])
def test_when_a_view_ends_nothing_of_it_still_writes_on_the_device(where):
    """What a step spreads goes straight into parameters, which are restored next."""
    device, happened = IdleDevice(), []
    server = Server(0, 0)
    network = OnDevice(device, View.of(PLAN), server)
    network.unblock = lambda: happened.append("given up")
    worker = Worker(
        PLAN, [Computing(device, 0)], Ending(network, where), network, Recorder(server, clock=device), hooks=()
    )
    with pytest.raises(ConnectionLost):
        worker.run(0)
    assert happened
