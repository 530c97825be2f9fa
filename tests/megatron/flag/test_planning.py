"""Where a Megatron job's plans come from: put in from above, or a catalogue, which says so."""

from types import SimpleNamespace

import pytest

from harness.examples import QUICK, paper_job
from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.control.membership.messages import CataloguePlan, PublishedPlan, Verdict
from recycle.control.membership.view import Member
from recycle.errors import NoPlanError, UserError
from recycle.job import Server
from recycle.megatron.flag.command.flags import find_flags
from recycle.megatron.flag.command.planning import Shape, Source
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue
from recycle.planner.source import megatron_plan
from recycle.runtime.recover.plans import FIRST, Plans, ViewPlans

SHAPE = Shape(2, 2, 3)
JOB = paper_job(pipelines=2, stages=2, micro_batches=3)
AUTHOR = Member(Server(0, 0), 0)


def view_plans(first, plans):
    """What a member does about plans that come from a source."""
    store = SimpleNamespace(board=Board(MemoryStore(), "token"))
    return ViewPlans(AUTHOR, JOB, Plans(first, plans.catalogue, plans.make), store)


def around_dead(dead):
    """The verdict of a view without some servers."""
    return Verdict(1, tuple(str(Member(each, 0)) for each in JOB.servers() if each not in dead), 0)


def never(*_):
    raise AssertionError("a plan was made")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plans.zip"
    make_catalogue(path, JOB, Mode(optimizer="global"), 1, QUICK, "lowered", lambda *_: None)
    return path


def source(path=None, make=megatron_plan, shape=SHAPE):
    words = () if path is None else ("--recycle-catalogue", str(path))
    flags, _ = find_flags([*words, "--recycle-budget", "0.2s"])
    return Source(flags, flags.read_catalogue(), shape, [], make)


def test_without_a_catalogue_what_is_put_in_makes_the_plans():
    asked = []

    def make(job, dead, mode, seconds):
        asked.append((tuple(dead), mode, seconds))
        return megatron_plan(job, dead, mode, seconds)

    plans = source(make=make)
    whole = plans.plan(())
    around = plans.plan([Server(1, 0)])
    mode = Mode(optimizer="global")
    assert asked == [((), mode, 0.2), ((Server(1, 0),), mode, 0.2)]
    assert whole.provenance.planner == "1F1B"
    found = view_plans(whole, plans)
    verdict = found.choose(around_dead(around.dead))
    assert verdict.plan == PublishedPlan(str(AUTHOR))
    assert found.find(verdict).dead == around.dead


def test_the_plans_of_a_catalogue_are_said_to_be_its_own_and_none_is_made(catalogue):
    first = source(catalogue).plan(())
    plans = source(catalogue, make=never)
    dead = JOB.dead_servers([Server(0, 1)])
    found = view_plans(first, plans)
    assert found.choose(around_dead(first.dead)).plan == FIRST
    verdict = found.choose(around_dead(dead))
    assert verdict.plan == CataloguePlan()
    assert found.find(verdict).programs[AUTHOR.server] == plans.plan(dead).programs[AUTHOR.server]


def test_what_a_catalogue_has_no_plan_for_is_made_when_it_is_asked_for(catalogue):
    plans = source(catalogue)
    dead = JOB.dead_servers([Server(0, 1), Server(1, 0)])
    assert plans.plan(dead).dead == dead
    with pytest.raises(NoPlanError, match="has no live server"):
        plans.plan([Server(0, 1), Server(1, 1)])
    found = view_plans(plans.plan(()), plans)
    verdict = found.choose(around_dead(dead))
    assert verdict.plan == PublishedPlan(str(AUTHOR))
    assert found.find(verdict).dead == dead


def test_a_plan_that_a_fused_catalogue_lacks_is_fused(tmp_path):
    make_catalogue(tmp_path / "plans.zip", JOB, Mode("fused", "global"), 0, QUICK, "lowered", lambda *_: None)
    assert source(tmp_path / "plans.zip").plan([Server(0, 1)]).mode == Mode("fused", "global")
    assert source().plan([Server(0, 1)]).mode == Mode("split", "global")


def test_virtual_stages_are_placed_as_megatron_places_them():
    whole = source(shape=Shape(2, 2, 3, 2)).plan(())
    assert whole.job.chunks == ((0, 2), (1, 3))
    assert str(Shape.of(whole.job)) == "2 pipelines x 2 stages of 2 virtual ones each x 3 micro-batches"


def test_a_catalogue_for_another_shape_is_refused(catalogue):
    with pytest.raises(UserError, match="its plans are for 2 pipelines x 2 stages x 3 micro-batches"):
        source(catalogue, shape=Shape(3, 2, 3))
    with pytest.raises(UserError, match="and training has 2 pipelines x 2 stages of 2 virtual ones each"):
        source(catalogue, shape=Shape(2, 2, 3, 2))
