"""Who leads decides with what the run has seen, also before this one led."""

from types import SimpleNamespace

from harness.examples import QUICK, paper_job
from harness.memory_store import MemoryStore
from harness.started import wait_until
from recycle.control.board.board import Board
from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.plan.moves import Proposal, Seen
from recycle.plan.plan import Plan
from recycle.planner.make import make_plan
from recycle.runtime.recover import moving
from recycle.runtime.recover.moving import MEASURED, Moving

JOB = paper_job(pipelines=2, stages=1, micro_batches=2, released=0)
FIRST, SECOND = (Member(Server(pipeline, 0), 0) for pipeline in range(2))


class Clock:
    """Goes on by a step whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 1000.0

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


class Weighs:
    """Moves nothing, and keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def weigh(self, situation):
        self.seen.append(situation.seen)
        return Proposal("stays", None)


def lead(member: Member, mover: Weighs, store: MemoryStore, plan: Plan, *verdicts: Verdict) -> Seen:
    """What it decides with in the last one of some views."""
    door = SimpleNamespace(board=Board(store, "token"))
    said: list[str] = []
    leader = Moving(member, JOB, mover, said.append, lambda: 1, door)
    for verdict in verdicts:
        leader.begin(verdict, plan)

    def has_decided():
        leader.look()
        return said

    for _ in range(MEASURED):
        leader.look()
    wait_until(has_decided)
    return mover.seen[-1]


def test_who_comes_back_and_leads_knows_what_was_seen_without_it(monkeypatch):
    # Of two that have seen something, the one that has seen it for longer is believed.
    clock = Clock()
    monkeypatch.setattr(moving, "time", clock)
    store, mover, plan = MemoryStore(), Weighs(), make_plan(JOB, (), Mode(), QUICK)
    together = (str(FIRST), str(SECOND))
    second = lead(
        SECOND, mover, store, plan, Verdict(1, together, 0), Verdict(2, (str(SECOND),), 4, deaths=(str(FIRST),))
    )
    # One look at the clock in the first view, and four in the second: the last one is when it decides.
    assert second == Seen(seconds=5000.0, live=10000.0, failures=1)
    back, clock.step = Member(FIRST.server, 1), 1e-6
    first = lead(back, mover, store, plan, Verdict(3, (str(back), str(SECOND)), 9, joined=(str(back),)))
    assert first.failures == 1
    assert first.seconds >= second.seconds
