"""Fleets as the planner sees them: scored, as jobs, and planned."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.holding import holders, placed
from recycle.placing.fleet import choose_fleet, fleet_job
from recycle.placing.layers import Layer, Model
from recycle.placing.templates import make_templates
from recycle.plan.checker import check_plan
from recycle.planner.fleets import plan_fleet, proven_period
from recycle.planner.make import Effort
from recycle.planner.model.stopping import MaxMoves

ONCE = Effort((MaxMoves(1),), "1 move")


def model_of(layers=24):
    return Model((Layer(1, 1, 1, 3),) * layers, 2 * layers)


@given(st.integers(4, 10), st.integers(6, 20))
@settings(max_examples=8)
def test_a_fleet_is_a_job_whose_plan_is_legal_and_about_as_long_as_its_score(live, micro_batches):
    model = model_of()
    templates = make_templates(model, live, 6)
    fleet = choose_fleet(templates, live, micro_batches, proven_period(model), 1)
    job = fleet_job(model, fleet)
    assert sum(job.loads) == micro_batches
    assert len(job.servers()) == fleet.servers
    assert all(len(peers) == len(fleet.pipelines) for peers in holders(job))
    assert sum(stage.forward for stage in job.stages) == 24
    for pipeline, formed in enumerate(fleet.pipelines):
        mine = [placed(job, each) for each in job.servers() if each.pipeline == pipeline]
        layers = [sum(job.stages[chunk].forward for chunk in server.chunks) for server in mine]
        assert layers == [end - first for first, end in formed.template.runs]
    plan = plan_fleet(model, fleet, ONCE)
    assert not check_plan(plan)
    assert plan.bound <= plan.period <= 1.25 * fleet.period


@pytest.mark.parametrize("live", [23, 21])
def test_few_servers_lost_leave_their_share_of_the_work_bound(live):
    model = Model((Layer(1, 1, 1, 3),) * 96, 192)
    fleet = choose_fleet(make_templates(model, 24, 12), live, 72, proven_period(model), 1)
    bound = (72 * 288 + 6 * 288) / live
    assert plan_fleet(model, fleet, ONCE).period <= bound / 0.95
