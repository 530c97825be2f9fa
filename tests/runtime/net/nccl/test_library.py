"""What the library for NCCL does when NCCL itself does not come back, and which tensors it is given."""

import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch.distributed import HashStore

from harness.stand_in import Library
from harness.stand_in_transport import StandInNccl
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost, Interrupted
from recycle.runtime.net.nccl import library as module
from recycle.runtime.net.nccl.bindings import Call
from recycle.runtime.net.nccl.communicators import OrderedLink
from recycle.runtime.net.nccl.library import NcclLibrary
from recycle.runtime.net.nccl.network import TwofoldGroup, TwofoldLink, TwofoldNetwork
from recycle.runtime.net.network import Link, NetworkOptions, Several
from recycle.runtime.net.transfer_key import STATE
from recycle.threads import NoneLeft


def nothing():
    """All is well."""


NEVER = SimpleNamespace(query=lambda: False)
"""The place after what does not end."""


def join(check=nothing, patience=timedelta(seconds=60)):
    made = StandInNccl(Library(), NetworkOptions(rebuild_timeout=patience), check)
    return made, made.join(HashStore(), 0, 1)


def test_who_waits_is_free_though_nccl_never_comes_back_from_giving_up(monkeypatch):
    monkeypatch.setattr(module, "ABORT", 0.05)
    made, communicator = join()
    never = threading.Event()
    monkeypatch.setattr(made._functions, "abort", lambda _: never.wait())
    made.abort([communicator])
    assert communicator.is_over(NEVER)
    with pytest.raises(RuntimeError, match="was aborted"):
        communicator.start([Call("sum", torch.ones(1))])
    never.set()


def test_who_gives_up_without_a_thread_for_it_gives_up_again_with_one(monkeypatch):
    made, communicator = join()
    told, start = [], module.start_thread

    def refuse_once(*words):
        monkeypatch.setattr(module, "start_thread", start)
        raise NoneLeft("threads")

    monkeypatch.setattr(made._functions, "abort", told.append)
    monkeypatch.setattr(module, "start_thread", refuse_once)
    with pytest.raises(NoneLeft):
        made.abort([communicator])
    assert communicator.is_over(NEVER)
    made.abort([communicator])
    made.abort([communicator])
    assert told == [communicator.handle]


def test_who_gives_up_again_goes_on_once_that_is_through_or_its_time_is_over(monkeypatch):
    made, communicator = join()
    begun, may_end, ended = (threading.Event() for _ in range(3))

    def abort(_):
        begun.set()
        may_end.wait()
        ended.set()

    monkeypatch.setattr(made._functions, "abort", abort)
    first = threading.Thread(target=made.abort, args=([communicator],))
    first.start()
    begun.wait()
    threading.Timer(0.05, may_end.set).start()
    made.abort([communicator])
    assert ended.is_set()
    first.join()
    # One that never comes back keeps nobody twice.
    monkeypatch.setattr(module, "ABORT", 0.05)
    stuck = made.join(HashStore(), 0, 1)
    may_end.clear()
    made.abort([stuck])
    monkeypatch.setattr(module, "ABORT", 600.0)
    made.abort([stuck])
    may_end.set()


def test_what_is_not_on_its_way_is_waited_for_as_long_as_the_view_lasts(monkeypatch):
    over = threading.Event()

    def check():
        if over.is_set():
            raise Interrupted("the view is over")

    made, communicator = join(check)
    monkeypatch.setattr(made._functions, "in_progress", lambda _: True)
    threading.Timer(0.05, over.set).start()
    with pytest.raises(Interrupted):
        communicator.start([Call("sum", torch.ones(1))])


def test_it_has_an_end(monkeypatch):
    made, communicator = join(patience=timedelta(milliseconds=50))
    monkeypatch.setattr(made._functions, "in_progress", lambda _: True)
    with pytest.raises(ConnectionLost, match="did not come"):
        communicator.start([Call("sum", torch.ones(1))])


def test_nothing_is_asked_of_what_was_given_up(monkeypatch):
    made, communicator = join()
    made.abort([communicator])
    made.abort([communicator])
    monkeypatch.setattr(made._functions, "in_progress", lambda _: pytest.fail("it is no more"))
    assert communicator.complete


class OneRank:
    """NCCL's functions that say which device is the calling thread's."""

    release = 0

    def __init__(self, present, said):
        self._present, self._said = present, said

    def unique_id(self):
        return b"name"

    def join(self, *_):
        self._said.append(("join", self._present.get()))
        return 1

    def abort(self, _):
        self._said.append(("abort", self._present.get()))


def test_nccl_makes_and_ends_communicators_on_the_rank_s_device_whatever_thread_asks(monkeypatch):
    present, said = ContextVar("device", default=0), []

    @contextmanager
    def device(taken):
        token = present.set(taken.index)
        yield
        present.reset(token)

    monkeypatch.setattr(torch.cuda, "device", device)
    functions = OneRank(present, said)
    made = NcclLibrary(torch.device("cuda", 3), timedelta(seconds=60), nothing, functions, lambda _: None)
    communicators = []
    thread = threading.Thread(target=lambda: communicators.append(made.join(HashStore(), 0, 1)))
    thread.start()
    thread.join()
    made.abort(communicators)
    assert said == [("join", 3), ("abort", 3)]


def test_a_tensor_that_is_not_yet_launched_stays_as_long_as_its_communicator(monkeypatch):
    made, communicator = join(patience=timedelta(milliseconds=50))
    monkeypatch.setattr(made._functions, "in_progress", lambda _: True)
    monkeypatch.setattr(made._functions, "start", lambda *_: None)
    tensor = torch.ones(1)
    held = weakref.ref(tensor)
    with pytest.raises(ConnectionLost):
        communicator.start([Call("sum", tensor)])
    del tensor
    assert held() is not None


class Named(Link):
    """A link and a group that say who was given what."""

    def __init__(self, name, given):
        self._name, self._given = name, given

    def send(self, tensor, _):
        self._given.append((self._name, int(tensor[0])))
        return Several()

    receive = send

    def start(self, _, tensor):
        return self.send(tensor, STATE)


def test_what_lies_on_a_device_goes_over_nccl_and_the_rest_beside_it():
    given = []
    ends = Named("host", given), Named("near", given), lambda tensor: int(tensor[0]) > 2
    host, near, is_near = ends
    link, group = TwofoldLink(host, lambda: near, is_near), TwofoldGroup(*ends)
    for number, act in enumerate([link.send, link.receive, link.send, link.receive], start=1):
        act(torch.tensor([number]), STATE).wait()
    group.sum(torch.tensor([0]))
    group.maximum(torch.tensor([5]))
    assert given == [("host", 1), ("host", 2), ("near", 3), ("near", 4), ("host", 0), ("near", 5)]


def test_what_a_device_receives_is_apart_from_what_it_computes_and_no_device_is_asked_about_the_rest():
    within = object()
    back, there = (
        SimpleNamespace(communicator=SimpleNamespace(lane=SimpleNamespace(within=lambda each=each: each)))
        for each in (within, None)
    )
    link = OrderedLink(there, back, 1)
    asked = []
    both = TwofoldLink(Named("host", []), lambda: asked.append(1) or link, lambda tensor: tensor.is_meta)
    with both.apart(torch.device("cpu")):
        assert not asked
    assert both.apart(torch.device("meta")) is within


def test_the_ways_of_shares_are_made_beside_nccl_too():
    """A checkpoint gathers shards there, when the store in which the ends of a link meet may be lost."""
    made = []

    def network(name):
        return MagicMock(connect_shares=lambda holders: made.append((name, holders)))

    holders = [(Server(0, 0), Server(1, 0))]
    TwofoldNetwork(network("host"), network("near")).connect_shares(holders)
    assert made == [("host", holders), ("near", holders)]
