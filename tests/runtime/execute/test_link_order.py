"""The order on links and in groups: in whatever way the servers of a plan go on, all of them start alike.

Transports tell the transfers of a link, and the reductions of a group, apart by nothing else.
"""

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import placed_job, plan_of
from recycle.control.membership.view import View
from recycle.holding import live_holders, placed
from recycle.job import Server
from recycle.plan.clock import run_clock
from recycle.plan.mode import Mode
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.model.lowering import instructions, lower
from recycle.planner.model.problem import make_problem
from recycle.record.recorder import Recorder
from recycle.runtime.execute.stage import Held, Redo, TensorSpec
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import Link, Several
from recycle.runtime.net.peers import chunk_peers, peers_of_last
from recycle.runtime.net.stop_line import NO_LINE
from recycle.runtime.net.transfer_key import TOKENS, Carried
from recycle.runtime.step.tokens import TokenTotal
from tests.planner.test_unequal import some_dead, unequal_jobs
from tests.strategies import placed_and_scheduled, scheduled

SPEC = TensorSpec((1,), torch.float32)


class Listed:
    """One server's network: every transfer ends at once, and what was started on each link is kept in order."""

    one_queue = False
    ends_are_right = True
    line = NO_LINE

    def __init__(self, view, server):
        self.view = view
        self.server = server
        self.sent = defaultdict(list)
        self.received = defaultdict(list)
        self.summed = defaultdict(list)
        self.peers = self.group("", view.peers(server.stage))

    def group(self, _, servers):
        return ListedGroup(self.summed[tuple(servers)])

    def link(self, peer):
        return ListedLink(self.sent[peer], self.received[peer])


class InOneQueue(Listed):
    """Where a sum would hold up a transfer that is started behind it, unless that lies in host memory."""

    one_queue = True

    def link(self, peer):
        link = super().link(peer)

        def checked(start):
            def act(tensor, key):
                assert key == TOKENS or not any(self.summed.values()), f"{key} is started behind a sum"
                return start(tensor, key)

            return act

        link.send, link.receive = checked(link.send), checked(link.receive)
        return link


class ListedGroup:
    def __init__(self, summed):
        self._summed = summed

    def start_sum(self, tensor):
        self._summed.append(tensor.shape)
        return Several()

    sum = start_sum


class ListedLink(Link):
    def __init__(self, sent, received):
        self._sent = sent
        self._received = received

    def send(self, _, key):
        self._sent.append(key)
        return Several()

    def receive(self, _, key):
        self._received.append(key)
        return Several()


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

    def backward(self, _, received):
        return self.input_gradient(_, received)

    def weight_gradient(self, _):
        pass

    def take_losses(self):
        return {}

    def held(self):
        return Held(0, 0)

    def drop(self):
        pass


class Update:
    """Asks for the total of tokens before it sums, and finds what has to be made again where all others do, too."""

    def __init__(self, job, network, redo):
        peers = chunk_peers(job, network)
        last = peers_of_last(job, peers)
        counters = live_holders(job, frozenset(network.view.servers))[-1]
        self._tokens = TokenTotal(network, counters, last and last.group, lambda: 1)
        self._groups = {chunk: each.group for each in peers for chunk in each.chunks}
        self._started = set()
        self._counted = False
        self._redo = list(redo)

    def collect(self):
        pass

    def validate(self):
        redo = self._redo.pop() if self._redo else Redo.NOTHING
        if redo is not Redo.NOTHING:
            self._started.clear()
        return redo

    def start_reduction(self, chunk):
        if chunk not in self._started:
            self._started.add(chunk)
            self._groups[chunk].start_sum(torch.zeros(100 + chunk))

    def reduce(self, chunk, *, last):
        if not self._counted:
            self._tokens()
        self._counted = not last
        self.start_reduction(chunk)
        self._started.remove(chunk)

    def step(self, chunk, *, last):
        return self._redo.pop() if last and self._redo else Redo.NOTHING


def lowered(job, dead, mode, compute):
    """What is run of some programs."""
    return plan_of(job, dead, mode, lower(job, run_clock(job, mode, compute))[1], "lowered")


@st.composite
def unequal_and_scheduled(draw):
    """Pipelines that are not alike: a server has other peers for each of its chunks, and may hold but one of them."""
    job = draw(unequal_jobs(4))
    problem = make_problem(job, some_dead(draw, job), Mode())
    return problem, instructions(problem, schedule_chunks(problem, POLICIES[0]))


@given(
    st.one_of(scheduled(pipelines=3), placed_and_scheduled(), unequal_and_scheduled()),
    st.lists(st.sampled_from(list(Redo)), max_size=6),
    st.booleans(),
)
@settings(max_examples=100)
def test_all_start_their_transfers_on_a_link_and_their_sums_in_a_group_in_the_same_order(case, redo, one_queue):
    problem, compute = case
    job, mode = problem.job, problem.mode
    plan = lowered(job, problem.dead, mode, compute)
    view = View.of(plan)
    networks = {}
    for server in view.servers:
        network = networks[server] = Listed(view, server)
        network.one_queue = one_queue
        update = Update(job, network, redo)
        stages = [Stage(each, len(job.stages)) for each in placed(job, server).chunks]
        worker = Worker(plan, stages, update, network, Recorder(server))
        worker.run(1)
        worker.evaluate()
        worker.settle()
        worker.run(2)
    for server, network in networks.items():
        for servers, shapes in network.summed.items():
            assert all(networks[each].summed[servers] == shapes for each in servers), f"{server} of {servers}"
    for sender, network in networks.items():
        for receiver, keys in network.sent.items():
            assert keys == networks[receiver].received[sender], f"{sender} to {receiver}"
    assert sum(len(keys) for each in networks.values() for keys in each.sent.values()) == sum(
        len(keys) for each in networks.values() for keys in each.received.values()
    )


class Watchful(Stage):
    """Notes whether sums are under way when it computes a gradient."""

    def __init__(self, stage, depth, network, seen):
        super().__init__(stage, depth)
        self._network, self._seen = network, seen

    def input_gradient(self, _, received):
        self._seen.append(any(self._network.summed.values()))
        return super().input_gradient(_, received)

    def weight_gradient(self, _):
        self._seen.append(any(self._network.summed.values()))


@pytest.mark.parametrize("connect", [Listed, InOneQueue])
def test_a_chunk_is_summed_while_others_are_computed_and_in_one_queue_behind_all_transfers(connect):
    job = placed_job("interleaved:2")
    problem = make_problem(job, frozenset(), Mode())
    plan = lowered(job, (), Mode(), instructions(problem, schedule_chunks(problem, POLICIES[0])))
    view, seen = View.of(plan), []
    for server in view.servers:
        network = connect(view, server)
        stages = [Watchful(each, len(job.stages), network, seen) for each in placed(job, server).chunks]
        Worker(plan, stages, Update(job, network, []), network, Recorder(server)).run(1)
    assert any(seen)


def test_everybody_but_the_last_stage_is_told_the_total_in_each_iteration_once(monkeypatch):
    view = View.among(Server(pipeline, stage) for pipeline in range(2) for stage in range(3))
    told = []
    for server in view.servers:
        network = Listed(view, server)
        for _ in range(3):
            tell = TokenTotal(network, view.peers(2), network.peers if server.stage == 2 else None, lambda: 1)
            with monkeypatch.context() as patch:
                # The store in which the ends of a link meet may be lost by then.
                patch.setattr(network, "link", None)
                tell()
        told += [peer for peer, keys in network.sent.items() for key in keys if key.carried is Carried.TOKENS]
        assert sum(map(len, network.received.values())) == (0 if server.stage == 2 else 3)
    assert sorted(told) == sorted(3 * [each for each in view.servers if each.stage < 2])
