"""The bounds hold, and are as tight as they are claimed to be."""

import pytest
from hypothesis import given

from harness.examples import paper_job
from recycle.plan.mode import Mode
from recycle.planner.model.bounds import breakdown, heads, lower_bound, period, round_trips
from recycle.planner.model.problem import make_problem
from tests.planner.test_table import TABLE, table_problem
from tests.strategies import problems


@pytest.mark.parametrize(("failed", "mode", "limit", "released", "expected"), TABLE)
def test_the_rules_are_tight_on_the_table(failed, mode, limit, released, expected):
    assert lower_bound(table_problem(failed, mode, limit, released)).value == expected


@pytest.mark.parametrize(
    ("failed", "limit", "released", "stage", "rule"),
    [
        ("W1_2", 4, 1, 2, "work"),
        ("W1_0", 4, 0, 0, "warm-up"),
        ("W1_1", 4, 1, 1, "warm-up"),
        ("W1_3", 4, 0, 0, "sandwich"),
        ("W0_2,W1_2", 4, 0, 0, "sandwich"),
    ],
)
def test_the_bound_says_what_binds(failed, limit, released, stage, rule):
    bound = lower_bound(table_problem(failed, Mode(), limit, released))
    assert (bound.stage, bound.rule) == (stage, rule)


def test_every_rule_is_given_for_every_stage():
    bounds = breakdown(table_problem("W1_2", Mode(), 4, 0))
    assert len(bounds) == len({(bound.stage, bound.rule) for bound in bounds}) == 4 * 6
    assert [bound.value for bound in bounds if bound.rule == "work"] == [21, 21, 30, 21]


@given(problems())
def test_each_rule_is_at_least_the_one_it_refines(problem):
    refined = {"work": "warm-up", "warm-up": "cool-down"}
    values = {(bound.rule, bound.stage): bound.value for bound in breakdown(problem)}
    for (rule, stage), length in values.items():
        assert length <= values[refined.get(rule, rule), stage]


def test_ways_through_an_empty_pipeline():
    problem = make_problem(paper_job(), [], Mode())
    assert heads(problem) == [0, 1, 2, 3]
    assert round_trips(problem) == [6, 4, 2, 0]


def test_the_period_behind_a_barrier_adds_the_update():
    job = paper_job()
    assert period(make_problem(job, [], Mode("split", "global")), 27) == 30
    assert period(make_problem(job, [], Mode()), 27) == 27
