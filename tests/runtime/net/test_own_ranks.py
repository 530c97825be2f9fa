"""What the ranks of a server call in groups that are their own is done as torch does it, wherever the tensors lie."""

from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import AllreduceOptions, BroadcastOptions, HashStore, ReduceOp, ReduceScatterOptions

from harness.local import launch
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, ServerRank
from recycle.job import Server
from recycle.megatron.shared.torch_calls import Calls
from recycle.runtime.net import own_ranks
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.runtime.net.stop_line import OwnGroup, StopLine

SIZE = 3
ALL = tuple(range(SIZE))
SETTINGS = "as many blocks as eight"


def calls_of(rank):
    """What one rank calls: name, arguments, where the results come to be, and what they have to be."""
    mine = torch.arange(6.0) + 10 * rank
    everybody = [torch.arange(6.0) + 10 * each for each in ALL]
    first = BroadcastOptions()
    first.rootRank = 1
    greatest = AllreduceOptions()
    greatest.reduceOp = ReduceOp(ReduceOp.MAX)
    summed, shared, found = mine.clone(), mine.clone(), torch.empty(18)
    yield "allreduce", ([summed], greatest), [summed], [everybody[-1]]
    yield "broadcast", ([shared], first), [shared], [everybody[1]]
    yield "_allgather_base", (found, mine), [found], [torch.cat(everybody)]
    unequal = [torch.empty(each + 1) for each in ALL]
    yield "allgather", ([unequal], [mine[: rank + 1]], None), unequal, [e[: n + 1] for n, e in enumerate(everybody)]
    dealt = torch.empty(2)
    part = slice(2 * rank, 2 * rank + 2)
    yield "_reduce_scatter_base", (dealt, mine, ReduceScatterOptions()), [dealt], [sum(everybody)[part]]
    swapped = torch.empty(6)
    yield "alltoall_base", (swapped, mine, [], []), [swapped], [torch.cat([each[part] for each in everybody])]
    uneven = torch.empty(SIZE * (rank + 1))
    starts = [0, 1, 3]
    ranges = [each[starts[rank] : starts[rank] + rank + 1] for each in everybody]
    yield "alltoall_base", (uneven, mine, [rank + 1] * SIZE, [1, 2, 3]), [uneven], [torch.cat(ranges)]


@pytest.mark.parametrize("crosses", [False, True])
def test_calls_bring_what_torch_says_and_nothing_they_are_given_changes(crosses):
    def body(process):
        participant = Participant(Member(Server(0, 1), 0), ServerRank(process.rank, SIZE))
        options = NetworkOptions(timedelta(seconds=20), timedelta(seconds=20), transport="staged")
        own = OwnRanks(process.store, participant, options, lambda _: crosses)
        for name, arguments, results, expected in calls_of(process.rank):
            given = arguments[1]
            before = given.clone() if isinstance(given, torch.Tensor) else None
            arguments = [each for each in arguments if each is not None]
            if name == "allgather":
                arguments.append(torch._C._distributed_c10d.AllgatherOptions())
            own.start(OwnGroup(ALL), lambda: None, name, arguments, {}).wait()
            assert all(map(torch.equal, results, expected)), (name, results, expected)
            assert before is None or torch.equal(given, before), name
        # Round a ring, of which all begin before any waits.
        received, version = torch.empty(2), torch.tensor([float(process.rank), 1.0])
        started = version._version
        works = [
            own.start(OwnGroup(ALL), lambda: None, "send", ([version], (process.rank + 1) % SIZE, 0), {}),
            own.start(OwnGroup(ALL), lambda: None, "recv", ([received], (process.rank - 1) % SIZE, 0), {}),
        ]
        for each in works:
            each.wait()
        assert received.tolist() == [(process.rank - 1) % SIZE, 1.0]
        assert version._version == started

    launch(SIZE, body)


def test_a_call_that_waits_in_the_stream_itself_is_over_and_is_not_made_again(monkeypatch):
    """Torch's groups of NCCL's return nothing then, which elsewhere means that somebody else carries it out."""
    calls, made = [], []
    backend = SimpleNamespace(allreduce=lambda *given: calls.append(given))
    monkeypatch.setattr(own_ranks, "make_device_backend", lambda *_, settings: made.append(settings) or backend)
    participant = Participant(Member(Server(0, 1), 0), ServerRank(0, 2))
    own = OwnRanks(HashStore, participant, NetworkOptions(transport="nccl"), lambda _: True)
    line = StopLine(lambda: None, own.start, lambda _: None, 1.0)
    with line.list():
        start = partial(line.start, OwnGroup((0, 1), SETTINGS))
        # Who carried it out would find no carrier here.
        work = Calls(None, 0, 2, start).carry_out("allreduce", [torch.ones(2)], AllreduceOptions())
    assert work.is_completed()
    assert len(calls) == 1
    assert made == [SETTINGS], "Megatron has set something for its communicator"
