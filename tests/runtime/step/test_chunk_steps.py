"""A server's chunks are stepped one after the other, and to the bit as all of them together are."""

from itertools import permutations
from types import SimpleNamespace

import pytest
import torch

from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost, NotFinite
from recycle.runtime.net.network import Alone
from recycle.runtime.net.peers import ChunkPeers
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.optimizers import RateSchedule, make_optimizer, set_rate
from recycle.runtime.step.update import TorchUpdate

CHUNKS = (1, 4)
SERVER = Server(0, 1)

# Every step up to the sixth has a rate of its own.
SCHEDULE = RateSchedule(0.01, 0.001, warm_up=3, end=6, decay="cosine")


class Peers(Alone):
    """Those of one chunk; one of them may be gone."""

    def __init__(self):
        self.gone = False
        self.sums = 0

    def sum(self, tensor):
        if self.gone:
            raise ConnectionLost("a peer is gone")
        self.sums += 1

    def start_sum(self, tensor):
        self.sum(tensor)
        return super().start_sum(tensor)


def make_chunk(chunk, dtype=torch.float32):
    source = torch.Generator().manual_seed(100 + chunk)
    return [torch.nn.Parameter(torch.randn(shape, generator=source).to(dtype)) for shape in ((5, 3), (3,))]


def gradients_of(chunk, step):
    source = torch.Generator().manual_seed(10 * step + chunk)
    return [torch.randn(shape, generator=source) for shape in ((5, 3), (3,))]


class Trained:
    """Two chunks with peers of their own, whose gradients follow from the step."""

    def __init__(self, dtype=torch.float32, after_reduction=None, chunks=CHUNKS, kind="adamw", **method):
        self.chunks = chunks
        self.parameters = [make_chunk(chunk, dtype) for chunk in chunks]
        self.update = TorchUpdate(
            MainParameters(*self.parameters),
            lambda members: make_optimizer(kind, members, 0.01, 0.1, 0.9),
            2,
            chunks,
            5,
            Method(staggered=True, keep=True, prepare=SCHEDULE.prepare, **method),
        )
        self.groups = {chunk: Peers() for chunk in chunks}
        view = View.among([SERVER])
        self.network = network = SimpleNamespace(
            view=view, server=SERVER, peers=Alone(), ranks=Alone(), rank=SimpleNamespace(is_first=True)
        )
        peers = [ChunkPeers((chunk,), (SERVER,), group) for chunk, group in self.groups.items()]
        self.update.connect(network, peers, after_reduction)

    def collect(self, step, factor=1.0):
        gradients = [each for chunk in self.chunks for each in gradients_of(chunk, step)]
        for each, gradient in zip(self.update.main, gradients, strict=True):
            each.grad.add_(gradient, alpha=factor)
        self.update.collect()

    def act(self, chunk, *, last):
        self.update.reduce(chunk, last=last)
        self.update.step(chunk, last=last)

    def train(self, step, order=CHUNKS):
        self.collect(step)
        for chunk in order:
            self.act(chunk, last=chunk == order[-1])

    def state(self, chunk=None):
        """Of all chunks, or of one: parameters in full precision and moments."""
        main = self.update.main
        which = slice(None) if chunk is None else main.of_stage(CHUNKS.index(chunk))
        members = list(main)[which]
        moments = [self.update.optimizer.state.get(each, {}) for each in members]
        found = [*members, *(value for state in moments for _, value in sorted(state.items()))]
        return [each.detach().clone() for each in (*found, *(p for own in self.parameters for p in own))]


def same(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("held", [(1,), (1, 4), (0, 2, 4)], ids=str)
def test_in_every_order_and_after_deaths_they_step_as_a_model_does_that_is_not_cut(held, kind):
    whole = [each for chunk in held for each in make_chunk(chunk)]
    optimizer = make_optimizer(kind, whole, 0.01, 0.1, 0.9)
    servers = {order: Trained(chunks=held, kind=kind) for order in permutations(held)}
    for step in range(8):
        set_rate(optimizer, SCHEDULE.at(step))
        for each, gradient in zip(whole, (each for chunk in held for each in gradients_of(chunk, step)), strict=True):
            each.grad = gradient / 2
        optimizer.step()
        for order, trained in servers.items():
            broken = trained.groups[order[step % len(order)]]
            broken.gone = True
            with pytest.raises(ConnectionLost):
                trained.train(step, order)
            trained.update.drop()
            broken.gone = False
            trained.train(step, order)
            assert same([each for own in trained.parameters for each in own], whole), f"iteration {step + 1}, {order}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_either_order_and_together_they_make_the_same_bits(dtype):
    together, apart = Trained(dtype, after_reduction=lambda: None), Trained(dtype)
    for step in range(3):
        order = CHUNKS if step % 2 else CHUNKS[::-1]
        together.collect(step)
        apart.collect(step)
        before = together.state()
        together.act(order[0], last=False)
        assert same(together.state(), before), "what is done to all gradients together comes before any step"
        together.act(order[1], last=True)
        still = [apart.state(chunk)[:2] for chunk in order]
        apart.act(order[0], last=False)
        # The warm-up begins with a rate of zero.
        assert same(apart.state(order[0])[:2], still[0]) == (step == 0)
        assert same(apart.state(order[1])[:2], still[1])
        assert apart.update.versions.newest == step
        apart.act(order[1], last=True)
        assert same(apart.state(), together.state())
        assert apart.update.versions.newest == together.update.versions.newest == step + 1
    assert [each.sums for each in apart.groups.values()] == [3, 3]
    apart.update.undo()
    together.update.undo()
    assert same(apart.state(), together.state())


def test_a_death_between_two_steps_takes_the_first_one_back():
    quiet, disturbed = Trained(), Trained()
    for step in range(3):
        quiet.train(step)
        before = disturbed.state()
        disturbed.collect(step)
        disturbed.groups[CHUNKS[1]].gone = True
        disturbed.act(CHUNKS[0], last=False)
        with pytest.raises(ConnectionLost):
            disturbed.act(CHUNKS[1], last=True)
        assert not same(disturbed.state(), before)
        disturbed.update.drop()
        assert same(disturbed.state(), before)
        assert disturbed.update.versions.newest == step
        disturbed.groups[CHUNKS[1]].gone = False
        disturbed.train(step)
        assert same(disturbed.state(), quiet.state())


def test_what_is_not_finite_is_not_stepped_and_named():
    trained = Trained()
    before = trained.state()
    trained.collect(0, factor=float("inf"))
    with pytest.raises(NotFinite, match="of stage 4 is not finite"):
        trained.act(4, last=False)
    assert same(trained.state(), before)


def test_a_listener_gets_the_gradients_of_all_chunks_when_the_last_one_is_stepped():
    trained, told = Trained(), []
    trained.update.feed.listener = SimpleNamespace(stepping=lambda parts: told.append([each.clone() for each in parts]))
    trained.collect(0)
    trained.act(1, last=False)
    assert not told
    trained.act(4, last=True)
    (parts,) = told
    follower = Trained()
    follower.update.follow(parts)
    assert same(follower.state(), trained.state())


@pytest.mark.parametrize("addends", [0, 4])
def test_a_chunk_is_summed_while_gradients_of_others_come(addends):
    # Two addends of this server, so that the first chunk's sum is under way when the second's come.
    at_once, beside = (Trained(addends=addends) for _ in range(2))
    for each in (at_once, beside):
        # Exact sums need bounds, which the iteration before gives.
        each.update.sums.begin([8] * 4 if addends else [])
    at_once.collect(0)
    for chunk in CHUNKS:
        at_once.update.reduce(chunk, last=False)
    members = list(beside.update.main)
    for chunk, mine in zip(CHUNKS, (members[:2], members[2:]), strict=True):
        for each, gradient in zip(mine, gradients_of(chunk, 0), strict=True):
            each.grad.add_(gradient)
        beside.update.collect()
        beside.update.start_reduction(chunk)
    assert [each.sums for each in beside.groups.values()] == [1, 1]
    for chunk in CHUNKS:
        beside.update.reduce(chunk, last=False)
    assert [each.sums for each in beside.groups.values()] == [1, 1]
    assert beside.update.sums.finish()
    assert at_once.update.sums.finish()
    assert same(beside.update.sums.parts(), at_once.update.sums.parts())
