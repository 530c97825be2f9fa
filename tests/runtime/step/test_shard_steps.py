"""The distributed optimizer makes the same bits as one that is whole, whoever holds which shard."""

import copy
from types import SimpleNamespace

import pytest
import torch

from harness.ranks import results_of
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import receive_state, send_state
from recycle.runtime.keep.layout import cut_by_shards, put_together, shard_of
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Alone, Several
from recycle.runtime.recover.restore import gather, share_out
from recycle.runtime.step import shard_steps
from recycle.runtime.step.checkpoint import give_state, named_state, stage_state
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.optimizers import make_optimizer
from recycle.runtime.step.shard_steps import ShardRule, ShardSteps
from recycle.runtime.step.update import TorchUpdate
from recycle.state.shards import assign_shards

SHAPES = [(100,), (64, 5), (7,), (33, 9), (130,)]
LAYERS = (2, 1, 2)
PEERS = 4


def parameters():
    source = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=source)) for shape in SHAPES]


def optimizer(kind):
    return lambda members: make_optimizer(kind, members, 0.01, 0.1, 0.9)


def set_gradients(members, step):
    source = torch.Generator().manual_seed(100 + step)
    for each in members:
        each.grad = torch.randn(each.shape, generator=source)


class Reference:
    """A whole optimizer."""

    def __init__(self, kind="adamw"):
        self.parameters = parameters()
        self.optimizer = optimizer(kind)(self.parameters)
        self.steps = 0

    def step(self):
        set_gradients(self.parameters, self.steps)
        self.optimizer.step()
        self.steps += 1


def require_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def whole_state(members, states):
    return {
        f"{place} {key}": value.detach()
        for place, each in enumerate(members)
        for key, value in {"parameter": each, **states[each]}.items()
    }


class Sharded:
    """The same as the reference, in shards."""

    def __init__(self, kind):
        self.parameters = parameters()
        main = MainParameters(self.parameters)
        self.optimizer = optimizer(kind)(list(main))
        self.steps = ShardSteps(main, self.optimizer, ShardRule(LAYERS, PEERS))
        self.named = {str(place): each for place, each in enumerate(self.parameters)}

    def enter(self, network, bring=None):
        share_out(self.steps, network, bring)
        self.steps.connect(network)

    def step(self, number):
        self.steps.begin()
        set_gradients(self.parameters, number)
        self.steps.make(slice(None))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_shards_move_with_deaths_and_returns_and_change_no_bit(kind):
    lives = [(0, 1, 2, 3), (0, 2, 3), (2, 3), (0, 1, 2, 3)]

    def body(process):
        store, me = process.store(), Server(process.rank, 0)
        reference, trained, held = Reference(kind), Sharded(kind), []
        for epoch, live in enumerate(lives):
            comes = epoch > 0 and process.rank not in lives[epoch - 1]
            if comes:
                trained = Sharded(kind)
            if process.rank in live:
                network = connect(store, View.among((Server(each, 0) for each in live), epoch), me)
                # As in recovery: who comes back gets from a peer what all peers hold.
                for other in {*live} - {*lives[max(epoch - 1, 0)]}:
                    if process.rank == 2:
                        send_state(
                            network.link(Server(other, 0)), b"", 0, stage_state(trained.named, trained.optimizer)
                        )
                    elif process.rank == other:
                        _, state = receive_state(network.link(Server(2, 0)), b"")
                        give_state(state, trained.named, trained.optimizer)
                        trained.steps.adopt(whole=False)
                trained.enter(network)
                held.append(sorted(trained.steps.held))
            for _ in range(3):
                if process.rank in live:
                    trained.step(reference.steps)
                reference.step()
        assert all(map(torch.equal, trained.parameters, reference.parameters))
        others = gather(trained.steps, network, Server(1, 0))
        if process.rank == 1:
            expected = whole_state(reference.parameters, reference.optimizer.state)
            require_same_bits(whole_state(trained.parameters, trained.steps.whole_state(others)), expected)
        moments = sum(value.numel() for state in trained.optimizer.state.values() for value in state.values())
        network.barrier()
        return held, moments

    said = results_of(PEERS, body)
    holders = [assign_shards(PEERS, live) for live in lives]
    for rank in range(PEERS):
        wanted = [
            {shard for shard, each in enumerate(chosen) if rank in each}
            for live, chosen in zip(lives, holders, strict=True)
            if rank in live
        ]
        assert all(each <= {*held} for each, held in zip(wanted[1:], said[rank][0][1:], strict=True))
    per_element = {"adamw": 2, "sgd": 1}[kind]
    whole = per_element * sum(each.numel() for each in parameters())
    # Two of four shards each, what is counted, and at most a few blocks more than that.
    assert all(moments < 0.65 * whole for _, moments in said.values())


def network_of_one():
    """As the last live peer of a stage sees it."""
    server, first = Server(1, 0), SimpleNamespace(is_first=True)
    network = SimpleNamespace(peers=Alone(), view=View.among([server]), server=server, rank=first)
    network.connect_shares = lambda _: None
    network.start_spread = lambda *_: Several()
    return network


def break_off(network, tensors):
    """What is given to all in a step, when a peer dies in the middle of it."""
    for tensor, _ in tensors:
        tensor.fill_(7)
    raise ConnectionLost("a peer is gone")


def make_update(shards=True):
    members = parameters()
    rule = ShardRule(LAYERS, PEERS) if shards else None
    update = TorchUpdate(
        MainParameters(members), optimizer("adamw"), PEERS, [0], 1, Method(staggered=True, keep=True, shards=rule)
    )
    update.connect(network_of_one())
    return update, {str(place): each for place, each in enumerate(members)}


def full_state(update, named):
    states = update.optimizer.state if update.shards is None else update.shards.whole_state({})
    return {name: value.clone() for name, value in whole_state(named.values(), states).items()}


def collect(update, step):
    source = torch.Generator().manual_seed(step)
    for each in update.main:
        each.grad.add_(torch.randn(each.shape, generator=source))


def train(update, steps):
    for step in steps:
        collect(update, step)
        update.reduce(0, last=True)
        update.step(0, last=True)


def test_a_death_among_the_peers_leaves_no_half_of_a_step(monkeypatch):
    update, named = make_update()
    before = full_state(update, named)
    for step in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(shard_steps, "spread", break_off)
            with pytest.raises(ConnectionLost):
                train(update, [step])
        update.drop()
        assert (update.versions.newest, update.versions.oldest) == (step, step)
        require_same_bits(full_state(update, named), before)
        train(update, [step])
        before = full_state(update, named)
    update.undo()
    train(update, [2])
    require_same_bits(full_state(update, named), before)
    quiet, its_names = make_update(shards=False)
    train(quiet, range(3))
    require_same_bits(before, full_state(quiet, its_names))


def test_who_goes_back_holds_what_it_held_then():
    update, named = make_update()
    train(update, range(2))
    shards = update.shards
    shards.held = shards.before = frozenset({0, 1})
    state = copy.deepcopy(shards.give(2))
    shards.take(2, state)
    assert shards.held == {0, 1, 2}
    update.undo()
    assert shards.held == {0, 1}
    assert shards.give(2) == {}
    assert stage_state(named, update.optimizer).keys() == {
        f"{kind}/{name}" for name in named for kind in ("parameter", "optimizer/step")
    }


@pytest.mark.parametrize("from_shards", [False, True])
def test_a_state_goes_from_shards_to_a_whole_optimizer_and_back(from_shards):
    (first, names), (second, others) = make_update(from_shards), make_update(not from_shards)
    train(first, range(3))
    states = first.optimizer.state if first.shards is None else first.shards.whole_state({})
    state = copy.deepcopy(named_state(names, states))
    give_state(state, others, second.optimizer)
    second.adopt(3, whole=True)
    train(second, range(3, 5))
    train(first, range(3, 5))
    require_same_bits(full_state(second, others), full_state(first, names))


def test_a_shard_that_no_peer_holds_comes_from_keepers():
    update, named = make_update()
    train(update, range(2))
    shards, expected = update.shards, full_state(update, named)
    version = cut_by_shards(stage_state(named, update.optimizer), shards, [1])
    kept = {name: each.clone() for name, each in version.state.items()}
    # What is written to disk from there is the state of an optimizer without shards.
    require_same_bits(put_together(version), named_state(named, shards.whole_state({})))
    for shard in (0, 3):
        shards._forget(shard)
    shards.held = frozenset({1, 2})
    # What is not here is known by its outline alone.
    outline = shards.pieces(3)
    assert {name: each.shape for name, each in outline.items()} == {
        name: each.shape for name, each in shard_of(kept, 3).items()
    }
    assert all(each.is_meta for each in outline.values())

    def bring(lost):
        for shard in lost:
            shards.take_pieces(shard, shard_of(kept, shard))

    share_out(shards, network_of_one(), bring)
    assert shards.held == {0, 1, 2, 3}
    require_same_bits(full_state(update, named), expected)


@pytest.mark.parametrize("keeper", [False, True])
def test_a_shard_that_came_through_host_memory_lies_where_its_parameters_do(keeper):
    source, _ = make_update()
    train(source, range(2))
    main = MainParameters([torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES])
    shards = ShardSteps(main, optimizer("adamw")(list(main)), ShardRule(LAYERS, PEERS))
    if keeper:
        shards.take_pieces(1, source.shards.pieces(1))
    else:
        shards.take(1, source.shards.give(1))
    moments = shards.give(1)
    assert moments.keys() == {"exp_avg", "exp_avg_sq"}
    assert all(each.is_meta for each in moments.values())
