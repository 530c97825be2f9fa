import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.checker import check_plan
from recycle.plan.document import encode_plan
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue, parts_of
from recycle.planner.source import megatron_plan, plan_ahead, plan_maker

JOB = paper_job(pipelines=2, stages=2, micro_batches=3)


def test_a_plan_is_made_alike_by_whoever_is_asked():
    dead = JOB.dead_servers([Server(1, 1)])
    one, other = (plan_maker(JOB, Mode())(dead) for _ in range(2))
    assert encode_plan(one) == encode_plan(other)
    assert one.dead == dead
    assert one.form == "lowered"


def test_a_catalogue_made_ahead_holds_small_jobs_failures_and_is_not_made_for_one_pipeline(tmp_path):
    path = plan_ahead(JOB, Mode(), tmp_path / "run" / "plans.zip")
    assert path is not None
    found = Catalogue(path, JOB).look_up([Server(1, 0)])
    assert check_plan(found.plan()) == ()
    assert plan_ahead(paper_job(pipelines=1), Mode(), tmp_path / "alone.zip") is None
    assert not (tmp_path / "alone.zip").exists()


def test_a_catalogue_is_made_ahead_whatever_an_interrupted_start_has_left(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = tmp_path / "plans.zip"
    other = paper_job(pipelines=2, stages=2, micro_batches=4)
    with pytest.raises(KeyboardInterrupt):
        make_catalogue(path, other, Mode(), 1, QUICK, "lowered", interrupt)
    assert parts_of(path).exists()
    assert plan_ahead(JOB, Mode(), path) == path
    assert Catalogue(path, JOB).look_up([Server(1, 0)]).dead == {Server(1, 0)}
    assert not parts_of(path).exists()


@pytest.mark.parametrize("optimizer", ["global", "staggered"])
def test_megatrons_own_order_is_1f1b_with_a_fused_backward(optimizer):
    plan = megatron_plan(JOB, (), Mode("split", optimizer), seconds=0.1)
    assert check_plan(plan) == ()
    assert plan.mode == Mode("fused", optimizer)
    assert (plan.provenance.planner, plan.provenance.budget) == ("1F1B", "none")
    compute = [each for each in plan.programs[Server(0, 0)] if each.op.is_compute]
    assert [(each.op, each.micro_batch) for each in compute] == [
        (Op.F, 0),
        (Op.F, 1),
        (Op.B, 0),
        (Op.F, 2),
        (Op.B, 1),
        (Op.B, 2),
    ]


def test_around_dead_servers_megatron_has_a_plan_of_the_mode():
    plan = megatron_plan(JOB, [Server(1, 1)], Mode(optimizer="global"), seconds=0.1)
    assert check_plan(plan) == ()
    assert (plan.mode, plan.dead, plan.provenance.budget) == (Mode(optimizer="global"), {Server(1, 1)}, "0.1 s")


@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 5))
def test_what_waits_for_weight_gradients_leaves_1f1b_as_it_is(stages, micro_batches, taken):
    """In 1F1B nothing waits, so it needs what a single input gradient takes, and not that of every micro-batch."""
    wide = paper_job(pipelines=1, stages=stages, micro_batches=micro_batches, limit=stages)
    tight = paper_job(pipelines=1, stages=stages, micro_batches=micro_batches, limit=stages + taken, taken=taken)
    one, other = (megatron_plan(job, (), Mode(), seconds=0.1) for job in (wide, tight))
    assert (one.programs, one.period, one.baseline) == (other.programs, other.period, other.baseline)
    assert check_plan(other) == ()
