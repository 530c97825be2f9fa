"""The order on links: in whatever way the servers of a plan go on, both ends of a link start its transfers alike.

Transports tell the transfers of a link apart by nothing else.
"""

from collections import defaultdict

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.control.view import View
from recycle.job import Server
from recycle.plan.clock import run_clock
from recycle.plan.plan import Plan, Provenance
from recycle.planner.model.lowering import lower
from recycle.record.recorder import Recorder
from recycle.runtime.execute.stage import Held, Redo, TensorSpec
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.transfer_key import Carried
from recycle.runtime.step.tokens import TokenTotal
from tests.strategies import placed_and_scheduled, scheduled

SPEC = TensorSpec((1,), torch.float32)


class Done:
    def wait(self):
        pass


class Listed:
    """One server's network: every transfer ends at once, and what was started on each link is kept in order."""

    one_queue = False

    def __init__(self, view, server):
        self.view = view
        self.server = server
        self.sent = defaultdict(list)
        self.received = defaultdict(list)
        self.peers = self

    def sum(self, _):
        pass

    def group(self, _, __):
        return self

    def link(self, peer):
        return ListedLink(self.sent[peer], self.received[peer])


class ListedLink:
    def __init__(self, sent, received):
        self._sent = sent
        self._received = received

    def send(self, _, key):
        self._sent.append(key)
        return Done()

    def receive(self, _, key):
        self._received.append(key)
        return Done()


class Stage:
    """Gives what the next one needs, at once."""

    cannot_split = ""

    def __init__(self, stage, depth):
        self.input = SPEC if stage else None
        self.output = SPEC if stage < depth - 1 else None

    def forward(self, _, received):
        assert (received is None) == (self.input is None)
        return None if self.output is None else SPEC.empty()

    evaluate = forward

    def input_gradient(self, _, received):
        assert (received is None) == (self.output is None)
        return None if self.input is None else SPEC.empty()

    backward = input_gradient

    def weight_gradient(self, _):
        pass

    def take_losses(self):
        return None

    def held(self):
        return Held(0, 0)

    def drop(self):
        pass


class Update:
    """Asks for the total of tokens in each reduction, and finds what has to be made again where all others do, too."""

    waits = False

    def __init__(self, network, place, redo):
        group = network.peers if network.server.stage == place else None
        self._tokens = TokenTotal(network, network.view.peers(place), group, lambda: 1)
        self._redo = list(redo)

    def collect(self):
        pass

    def validate(self):
        return self._redo.pop() if self._redo else Redo.NOTHING

    def reduce(self):
        self._tokens()

    def step(self):
        return self._redo.pop() if self._redo else Redo.NOTHING


@given(st.one_of(scheduled(pipelines=3), placed_and_scheduled()), st.lists(st.sampled_from(list(Redo)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_both_ends_of_every_link_start_its_transfers_in_the_same_order(case, redo):
    problem, compute = case
    job, mode = problem.job, problem.mode
    _, lists = lower(job, run_clock(job, mode, compute))
    programs = {server: tuple(program) for server, program in lists.items()}
    provenance = Provenance("test", 0, "", "", "bounded")
    plan = Plan(job, problem.dead, {}, mode, "lowered", 0, 0, 0, 0, provenance, programs)
    view = View.of(plan)
    networks = {}
    for server in view.servers:
        network = networks[server] = Listed(view, server)
        update = Update(network, job.places[-1], redo)
        stages = [Stage(each, len(job.stages)) for each in job.chunks[server.stage]]
        worker = Worker(plan, stages, update, network, Recorder(server))
        worker.run(1)
        worker.evaluate()
        worker.settle(2)
        worker.run(2)
    for sender, network in networks.items():
        for receiver, keys in network.sent.items():
            assert keys == networks[receiver].received[sender], f"{sender} to {receiver}"
    assert sum(len(keys) for each in networks.values() for keys in each.sent.values()) == sum(
        len(keys) for each in networks.values() for keys in each.received.values()
    )


def test_everybody_but_the_last_stage_is_told_the_total_in_each_iteration_once():
    view = View.among(Server(pipeline, stage) for pipeline in range(2) for stage in range(3))
    told = []
    for server in view.servers:
        network = Listed(view, server)
        for _ in range(3):
            TokenTotal(network, view.peers(2), network.peers if server.stage == 2 else None, lambda: 1)()
        told += [peer for peer, keys in network.sent.items() for key in keys if key.carried is Carried.TOKENS]
        assert sum(map(len, network.received.values())) == (0 if server.stage == 2 else 3)
    assert sorted(told) == sorted(3 * [each for each in view.servers if each.stage < 2])
