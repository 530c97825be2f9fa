from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings

from harness.examples import QUICK, paper_job, paper_plan, plan_of
from recycle.job import Server
from recycle.plan.mode import Mode
from recycle.planner.explain import ARGUMENTS, explain
from recycle.planner.make import make_plan
from recycle.planner.model.bounds import Rule
from tests.strategies import scheduled


def test_without_a_failure_there_is_no_cost():
    assert explain(paper_plan(failed=())).cost == ("Nothing has failed.",)


def test_no_loss_leaves_nothing_to_help():
    explanation = explain(paper_plan())
    assert explanation.remedies == ()
    assert "Stage 2 bounds it (work)" in explanation.bound
    assert "as long as fault-free 1F1B (30 slots)" in explanation.cost[-1]


@pytest.mark.parametrize(("stage", "limit", "enough"), [(0, 4, 8), (3, 4, 7)])
def test_more_memory_at_the_stage_that_bounds_is_the_remedy(stage, limit, enough):
    plan = paper_plan(failed=(Server(1, stage),), limit=limit, released=0)
    remedies = explain(plan).remedies
    assert remedies
    assert all(remedy.at_best < plan.period for remedy in remedies)
    if stage == 0:
        assert any("micro-batches at stage 0" in remedy.change for remedy in remedies)


def test_fewer_micro_batches_help_where_they_make_the_shares_even():
    plan = paper_plan(failed=(Server(0, 0), Server(1, 0)), pipelines=5, stages=1, micro_batches=7, limit=20)
    change = [each.change for each in explain(plan).remedies]
    assert change == ["6 micro-batches per iteration: 5.5 slots for each instead of 5.571 slots"]


def test_the_other_modes_are_remedies_of_a_fused_plan():
    plan = make_plan(paper_job(limit=(4, 3, 2, 1), released=0), (Server(1, 2),), Mode("fused", "global"), QUICK)
    changes = {remedy.change: remedy.at_best for remedy in explain(plan).remedies}
    assert "split the backward pass" in changes
    assert all(value < plan.period for value in changes.values())


def test_a_plan_above_its_bound_says_so():
    plan = paper_plan()
    plan = msgspec.structs.replace(plan, bound=plan.bound - 3)
    assert "3 slots above" in explain(plan).time


@settings(max_examples=60)
@given(scheduled())
def test_any_legal_plan_is_explained(made):
    problem, programs = made
    explanation = explain(plan_of(problem.job, problem.dead, problem.mode, programs))
    assert explanation.bound.startswith("Stage ")


def test_every_rule_of_the_bounds_has_words():
    assert set(ARGUMENTS) == set(get_args(Rule))


def test_under_tight_memory_both_baselines_are_named_and_waiting_for_room_is_no_room():
    plan = paper_plan(failed=(Server(1, 2),), limit=1)
    *_, whole = lines = explain(plan).cost
    assert f"fault-free 1F1B within this memory ({plan.baseline} slots)" in whole
    assert "of 1F1B with the memory that it wants (30 slots), with" in whole
    assert "leaves each 9 slots idle" in lines[0]
