"""NCCL's own functions as they are called, and the library above them, in processes over the stand-in for NCCL."""

import ctypes
import multiprocessing
import os
import time
from datetime import timedelta

import pytest
import torch
from torch.distributed import FileStore

from harness.local import launch
from harness.stand_in_library import ONE_QUEUE, HostLane, built, lacking, nccl_library
from recycle.runtime.net.nccl.bindings import TYPES, Call, Nccl
from recycle.runtime.net.nccl.communicators import Communicators
from recycle.runtime.net.network import NetworkOptions

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())
FORK = multiprocessing.get_context("fork")
LONG = 300_001
"""Numbers of a tensor that goes in several pieces."""


def until(over):
    """Wait; who waits for ever is killed by its test."""
    while not over():
        time.sleep(0.001)


class End:
    """A rank's end of a communicator that is made and used by the functions themselves."""

    def __init__(self, name, rank, size):
        self.nccl = Nccl(str(built()))
        self.lane = HostLane(built())
        self.rank = rank
        self.handle = self.nccl.join(name, rank, size)

    def is_ready(self):
        return not self.nccl.in_progress(self.handle)

    def start(self, kind, tensor):
        return self.start_together(Call(kind, tensor, 1 - self.rank))

    def start_together(self, *calls):
        self.lane.follow([each.tensor for each in calls])
        self.nccl.start(calls, self.handle, self.lane.number)
        return self.lane.mark()

    def carry(self, kind, tensor):
        until(self.is_ready)
        mark = self.start(kind, tensor)
        until(mark.query)
        return tensor

    def abort(self):
        self.nccl.abort(self.handle)


def name():
    return Nccl(str(built())).unique_id()


def values(kind_of_number, rank):
    return (torch.arange(LONG) % 13 + rank).to(kind_of_number)


def test_sums_and_maxima_of_all_types_are_right():
    unique = name()

    def rank(member):
        end = End(unique, member.rank, 3)
        for kind_of_number in TYPES:
            for kind in ("sum", "maximum"):
                given = torch.stack([values(kind_of_number, each) for each in range(3)])
                expected = (given.sum(0) if kind == "sum" else given.amax(0)).to(kind_of_number)
                assert torch.equal(end.carry(kind, values(kind_of_number, member.rank)), expected), kind_of_number
        end.abort()

    launch(3, rank)


def join(library, folder, number, names):
    """Communicators of two, made by the library."""
    stores = [FileStore(f"{folder}/{each}", 2) for each in names]
    joined = [library.join(store, number, 2) for store in stores]
    until(lambda: all(each.complete for each in joined))
    return joined


@pytest.mark.parametrize("first", ["launched", "not launched"])
def test_communicators_that_are_in_each_others_way_are_given_up_all_the_same(tmp_path, first):
    """The one that is told first can end only when the other one has."""
    over = FORK.Event()

    def rank(member):
        os.environ[ONE_QUEUE] = "1"
        library = nccl_library(built(), NetworkOptions(rebuild_timeout=timedelta(seconds=30)))
        stuck, behind = join(library, tmp_path, member.rank, ["stuck", "behind"])
        ready = [stuck, behind] if first == "launched" else [stuck]
        for each in ready:
            place = each.start([Call("sum", torch.ones(1))])
            until(lambda each=each, place=place: each.is_over(place))
        if member.rank == 1:
            over.wait()
            return
        stuck.start([Call("sum", torch.ones(1))])
        if first == "launched":
            behind.start([Call("sum", torch.ones(1))])
        else:
            # It waits for the device, which is never free: nobody waits for it here.
            library._functions.start([Call("sum", torch.ones(1))], behind.handle, 0)
        library.abort([behind, stuck])
        assert ctypes.CDLL(str(built())).stand_in_pending() == 0, "they were left alone"
        over.set()

    launch(2, rank)


def test_who_cannot_make_a_communicator_gives_up_those_it_has_made(tmp_path, monkeypatch):
    def rank(_):
        library = nccl_library(built(), NetworkOptions(rebuild_timeout=timedelta(seconds=30)))
        communicators = Communicators(library, FileStore(f"{tmp_path}/store", 1), NetworkOptions(), lambda: None)
        communicators.group("one", 0, 2)
        made = communicators._joined[0]

        def fail(*_):
            raise RuntimeError("no more memory")

        library._functions.join = fail
        with pytest.raises(RuntimeError, match="no more memory"):
            communicators.group("other", 0, 2)
        assert made.aborted

    launch(1, rank)
