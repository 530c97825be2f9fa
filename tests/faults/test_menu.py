import pytest

from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server

W0_0, W0_1, W1_2 = Server(0, 0), Server(0, 1), Server(1, 2)
FORWARD = InstructionPattern.parse("2F1.3")


@pytest.mark.parametrize("kind", Kind)
def test_who_does_what_is_in_the_model(kind):
    servers = () if kind is Kind.STORE_LOSS else (W1_2,)
    factor = 2.0 if kind is Kind.SLOW else None
    outside = kind in (Kind.AGENT_KILL, Kind.STORE_LOSS, Kind.JOIN)
    fault = Fault(kind, servers, step=3, factor=factor)
    assert fault.is_of_worker is not outside
    if outside or kind in (Kind.KILL, Kind.STOP):
        assert not Fault(kind, servers, at=3.0, factor=factor).is_of_worker
    else:
        with pytest.raises(FaultError, match=r"at is 3s: kind .* give iteration instead"):
            Fault(kind, servers, at=3.0, factor=factor)


def test_a_worker_gets_its_own_and_the_launcher_the_rest_in_order():
    kill = Fault(Kind.KILL, (W0_0, W0_1), step=3)
    again = Fault(Kind.KILL, (W0_0,), step=9, incarnation=1)
    late, early = Fault(Kind.KILL, (W1_2,), at=9.0), Fault(Kind.STORE_LOSS, at=2.0)
    join, host = Fault(Kind.JOIN, (W0_0,), step=5), Fault(Kind.AGENT_KILL, (W0_0, W1_2), step=4)
    faults = Faults((kill, again, late, early, join, host))
    assert faults.of_worker(W0_0) == (kill,)
    assert faults.of_worker(W0_1) == (kill,)
    assert faults.of_worker(W0_0, incarnation=1) == (again,)
    assert faults.of_worker(W0_1, incarnation=1) == ()
    assert faults.of_worker(W1_2) == ()
    assert faults.of_launcher() == (early, late, host, join)


def test_a_fault_in_words():
    assert str(Fault(Kind.KILL, (W1_2,), step=7, instruction=FORWARD)) == "kill of W1_2 in iteration 8 before 2F1.3"
    assert str(Fault(Kind.AGENT_KILL, (W0_0, W0_1), at=1.5)) == "agent-kill of W0_0, W0_1 at 1.5s"
    assert str(Fault(Kind.STORE_LOSS, step=1)) == "store-loss in iteration 2"
    slow = Fault(Kind.SLOW, (W0_0,), step=2, factor=4.0, duration=0.5, incarnation=1)
    assert str(slow) == "slow of W0_0 (incarnation 1) in iteration 3, 4 times, for 0.5s"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": Kind.KILL, "step": 1}, r'server is missing: say whom kind .kill. is for, .* server = "W1_2"'),
        ({"kind": Kind.STORE_LOSS, "servers": (W0_0,), "step": 1}, "server is W0_0: there is one store, .* leave"),
        ({"kind": Kind.STOP, "servers": (W0_0, W0_1), "step": 1}, "servers has 2 entries: .* write a fault for each"),
        ({"kind": Kind.KILL, "servers": (W0_0, W0_0), "step": 1}, "servers names W0_0 twice: leave one out"),
        ({"servers": (W0_0,)}, "iteration is missing: say when"),
        ({"servers": (W0_0,), "step": 1, "at": 2.0}, "iteration is 2 and at is 2s: leave one of them out"),
        ({"servers": (W0_0,), "step": -1}, "iteration is 0: iterations count from 1"),
        ({"servers": (W0_0,), "step": 1, "factor": 2.0}, "factor is 2: only kind 'slow' has one, and this is 'kill'"),
        ({"servers": (W0_0,), "step": 1, "duration": 2.0}, "duration is 2s: kind 'kill' has none; leave it out"),
        ({"servers": (W0_0,), "at": 1.0, "instruction": FORWARD}, "only a worker sees instructions; leave it out"),
        ({"servers": (W0_0,), "at": 1.0, "incarnation": 1}, "incarnation is 1: the launcher does this"),
        ({"servers": (W0_0,), "step": 1, "incarnation": -1}, "incarnations count from 0"),
        ({"kind": Kind.NAN, "servers": (W0_0,), "step": 1, "instruction": FORWARD}, "before the iteration's REDUCE"),
        ({"kind": Kind.STOP, "servers": (W0_0,), "step": 1, "duration": 0.0}, "duration is 0s: give more than 0"),
        ({"kind": Kind.SLOW, "servers": (W0_0,), "step": 1}, "factor is missing: .* factor = 4"),
        ({"kind": Kind.SLOW, "servers": (W0_0,), "step": 1, "factor": 1.0}, "factor is 1: give a number above 1"),
        ({"kind": Kind.SLOW, "servers": (W0_0,), "step": 1, "factor": float("nan")}, "factor is nan: give a number"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(FaultError, match=message):
        Fault(**{"kind": Kind.KILL, **fields})
