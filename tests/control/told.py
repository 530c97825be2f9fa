"""A member's machine of a small job, and what it is told."""

from typing import Any

from harness.examples import paper_job
from recycle.control.membership.events import Built, Decided, Event, Halted, Noticed, StoreGone
from recycle.control.membership.machine import Machine, State
from recycle.control.membership.messages import Death, Report, Verdict
from recycle.control.membership.view import SOLE, Member, ServerRank

JOB = paper_job(pipelines=2, stages=2)
A, B, C, D = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_0#0", "W1_1#0"))
NEW = Member.parse("W1_1#1")
FIRST = Verdict(0, tuple(map(str, (A, B, C, D))), 5)
SECOND = Verdict(1, tuple(map(str, (A, B, C))), 5)
DEATH = Death(str(D), "was killed", "agent", 1.0)


def verdict(epoch: int, *members: Member, step: int = 5, stop: str = "") -> Verdict:
    return Verdict(epoch, tuple(map(str, members)), step, stop=stop)


def report(member: Member, newest: int = 5, oldest: int = 5, epoch: int = 0, checkpoint: int | None = None) -> Report:
    return Report(str(member), epoch, newest, oldest, checkpoint)


class Told:
    """A machine, and events with ids of their own."""

    def __init__(self, me: Member = A, rank: ServerRank = SOLE) -> None:
        self.machine = Machine(me, JOB, rank)
        self.rank = rank
        self.count = 0

    def __call__(self, kind: type[Event], *content: object) -> tuple:
        self.count += 1
        return self.machine.handle(kind(f"{self.count}", *content))

    def halts(self, epoch: int, newest: int = 5, oldest: int = 5, checkpoint: int | None = None, **held: Any) -> tuple:
        mine = Report(str(self.machine.me), epoch, newest, oldest, checkpoint, rank=self.rank.number, **held)
        return self(Halted, mine)

    @property
    def state(self) -> State:
        return self.machine.state


def in_state(state: State, me: Member = A) -> Told:
    told = Told(me)
    if state is State.JOINING:
        return told
    told(Decided, FIRST)
    if state is State.REBUILDING:
        return told
    told(Built, 0)
    if state is State.UNPROTECTED:
        told(StoreGone)
    elif state is State.FENCED:
        told(Decided, verdict(1, *sorted({A, B, C, D} - {me})))
    elif state is not State.TRAINING:
        told(Noticed, 0, "cause")
        if state is State.STOPPED:
            told(StoreGone)
        elif state is State.GATHERING:
            told.halts(0)
    assert told.state is state
    return told
