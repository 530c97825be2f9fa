"""Who leads decides with what the run has seen, also before this one led."""

from types import SimpleNamespace

from harness.examples import QUICK, paper_job
from harness.memory_store import MemoryStore
from harness.started import wait_until
from recycle.control.board import Board
from recycle.control.messages import Verdict
from recycle.control.view import Member
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.plan.moves import Proposal, Seen
from recycle.plan.plan import Plan
from recycle.planner.make import make_plan
from recycle.runtime.recover.moving import MEASURED, Moving

JOB = paper_job(pipelines=2, stages=1, micro_batches=2, released=0)
FIRST, SECOND = (Member(Server(pipeline, 0), 0) for pipeline in range(2))


class Weighs:
    """Moves nothing, and keeps what it was told."""

    by_speed = False

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def weigh(self, situation):
        self.seen.append(situation.seen)
        return Proposal("stays", None)


def lead(member: Member, mover: Weighs, store: MemoryStore, plan: Plan, *verdicts: Verdict) -> Seen:
    """What it decides with in the last one of some views."""
    door = SimpleNamespace(board=Board(store, "token"))
    said: list[str] = []
    moving = Moving(member, JOB, mover, said.append, lambda: 1, door)
    for verdict in verdicts:
        moving.begin(verdict, plan)

    def has_decided():
        moving.look({})
        return said

    for _ in range(MEASURED):
        moving.look({})
    wait_until(has_decided)
    return mover.seen[-1]


def test_who_comes_back_and_leads_knows_what_was_seen_without_it():
    store, mover, plan = MemoryStore(), Weighs(), make_plan(JOB, (), Mode(), QUICK)
    together = (str(FIRST), str(SECOND))
    second = lead(
        SECOND, mover, store, plan, Verdict(1, together, 0), Verdict(2, (str(SECOND),), 4, deaths=(str(FIRST),))
    )
    assert (second.failures, second.repairs) == (1, 0)
    back = Member(FIRST.server, 1)
    first = lead(back, mover, store, plan, Verdict(3, (str(back), str(SECOND)), 9, joined=(str(back),)))
    assert first.failures == 1
    assert first.seconds >= second.seconds
