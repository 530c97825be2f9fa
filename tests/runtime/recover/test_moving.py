"""The leader of a view weighs moves of layers once in it, beside training."""

import threading

import pytest

from harness.examples import QUICK, paper_job
from harness.started import wait_until
from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.plan.moves import Proposal, Situation
from recycle.planner.make import make_plan
from recycle.runtime.recover.moving import MEASURED, Moving

JOB = paper_job(pipelines=2, stages=1, micro_batches=2, released=0)
FIRST, SECOND = (Member(Server(pipeline, 0), 0) for pipeline in range(2))
BOTH = (str(FIRST), str(SECOND))


class Weighs:
    """Proposes the plan that it was asked about, once it may answer; it is a Mover."""

    def __init__(self) -> None:
        self.asked: list[Situation] = []
        self.may_answer = threading.Event()

    def weigh(self, situation):
        self.asked.append(situation)
        assert self.may_answer.wait(60)
        return Proposal(f"answer {len(self.asked)}", situation.plan)


@pytest.fixture
def mover():
    made = Weighs()
    yield made
    made.may_answer.set()


@pytest.fixture
def plan():
    return make_plan(JOB, (), Mode(), QUICK)


def test_a_leader_weighs_once_in_a_view(mover, plan):
    said: list[str] = []
    leader = Moving(FIRST, JOB, mover, said.append, lambda: 7)
    leader.begin(Verdict(1, BOTH, 0), plan)
    assert not any(leader.look() for _ in range(MEASURED + 5))
    wait_until(lambda: mover.asked)
    assert mover.asked == [Situation(plan, JOB, mover.asked[0].seconds, 7)]
    mover.may_answer.set()
    wait_until(leader.look)
    assert (said, leader.plan) == (["answer 1"], plan)
    assert not any(leader.look() for _ in range(MEASURED + 5))
    assert len(mover.asked) == 1


def test_what_was_found_for_another_view_is_forgotten(mover, plan):
    said: list[str] = []
    leader = Moving(FIRST, JOB, mover, said.append, lambda: 7)
    leader.begin(Verdict(1, BOTH, 0), plan)
    for _ in range(MEASURED + 1):
        leader.look()
    wait_until(lambda: mover.asked)
    leader.begin(Verdict(2, (str(FIRST),), 4, deaths=(str(SECOND),)), plan)
    mover.may_answer.set()
    assert not leader.look()
    assert (said, leader.plan) == ([], None)
    wait_until(leader.look)
    assert len(mover.asked) == 2


def test_only_the_first_member_of_a_view_weighs(mover, plan):
    other = Moving(SECOND, JOB, mover, pytest.fail, lambda: 7)
    other.begin(Verdict(1, BOTH, 0), plan)
    assert not any(other.look() for _ in range(MEASURED + 5))
    assert mover.asked == []


def test_training_goes_on_as_it_is_if_nothing_can_be_weighed(mover, plan, monkeypatch):
    def fail(situation):
        raise MemoryError("no room for another plan")

    monkeypatch.setattr(mover, "weigh", fail)
    said: list[str] = []
    leader = Moving(FIRST, JOB, mover, said.append, lambda: 7)
    leader.begin(Verdict(1, BOTH, 0), plan)
    assert not any(leader.look() for _ in range(MEASURED + 1))
    wait_until(lambda: leader.look() or said)
    assert said == ["layers stay where they are: no better places can be looked for (no room for another plan)"]
    assert not any(leader.look() for _ in range(MEASURED + 5))
    assert leader.plan is None
