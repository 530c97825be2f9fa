"""The numbers that any planner of this problem must reproduce: 3 pipelines, 4 stages, 6 micro-batches, optimizer 3."""

import pytest

from harness.examples import paper_job
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves

FUSED = Mode("fused", "global")
SPLIT = Mode("split", "global")
STAGGERED = Mode("split", "staggered")
STEPPED = (4, 3, 2, 1)
ONE_PER_STAGE = "W0_0,W1_1,W2_2,W0_3"

# What is compared: the makespan with one global optimizer, the period with a staggered one.
TABLE = [
    ("", FUSED, STEPPED, 0, 27),
    ("W1_2", FUSED, STEPPED, 0, 36),
    ("W1_2", FUSED, 4, 0, 33),
    ("W1_2", SPLIT, 4, 0, 29),
    ("W1_2", SPLIT, 6, 0, 29),
    ("W1_2", STAGGERED, 4, 1, 30),
    ("W1_2", STAGGERED, 6, 0, 30),
    ("W1_0", STAGGERED, 4, 0, 33),
    ("W1_0", STAGGERED, 6, 0, 31),
    ("W1_0", STAGGERED, 8, 0, 30),
    ("W1_3", STAGGERED, 4, 0, 33),
    ("W1_3", STAGGERED, 6, 0, 31),
    ("W1_3", STAGGERED, 7, 0, 30),
    ("W1_3", STAGGERED, 4, 1, 30),
    ("W1_1", STAGGERED, 4, 1, 31),
    ("W1_1", STAGGERED, 6, 1, 30),
    (ONE_PER_STAGE, STAGGERED, 4, 1, 33),
    ("W1_0,W1_1,W1_2,W1_3", STAGGERED, 4, 1, 33),
    ("W0_2,W1_2", STAGGERED, 4, 1, 57),
    ("W0_2,W1_2", STAGGERED, 4, 0, 58),
]


def table_problem(failed, mode, limit, released):
    servers = [Server.parse(name) for name in failed.split(",") if name]
    return make_problem(paper_job(limit=limit, released=released), servers, mode)


@pytest.mark.parametrize(("failed", "mode", "limit", "released", "expected"), TABLE)
def test_the_fast_planner_reaches_every_number(failed, mode, limit, released, expected):
    problem = table_problem(failed, mode, limit, released)
    plan = make_plan(problem.job, problem.dead, mode, Effort((MaxMoves(400_000),), "400000 moves"))
    assert check_plan(plan) == ()
    assert (plan.period if mode is STAGGERED else plan.makespan) == expected
