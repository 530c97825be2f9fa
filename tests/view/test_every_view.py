"""Every view draws every legal plan, and what is in it."""

import msgspec
from hypothesis import given, settings

from harness.examples import QUICK, paper_plan, placed_job, plan_of
from recycle.holding import own_layout, with_layout
from recycle.job import Server
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.view.subject import subject_of
from tests.strategies import scheduled
from tests.view.samples import all_views


@settings(max_examples=40)
@given(scheduled())
def test_any_legal_plan_is_drawn_in_every_view(made):
    problem, programs = made
    plan = plan_of(problem.job, problem.dead, problem.mode, programs)
    all_views(subject_of(plan, "legal"))


def test_a_pipeline_that_is_given_up_is_drawn():
    job = placed_job("consecutive:2")
    gone = PlacedServer((), 4)
    layout = (PlacedPipeline(0, (gone, gone)), PlacedPipeline(8, own_layout(job)[1].servers))
    all_views(subject_of(make_plan(with_layout(job, layout), [Server(0, 0)], Mode(), QUICK), "legal"))


def test_names_that_would_steer_a_terminal_or_break_a_picture_are_shown_as_signs():
    plan, name = paper_plan(), "a\x1b[31m\x00\nb"
    named = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, name=name, time_unit=name))
    for text in all_views(subject_of(named, "named")).values():
        assert "\x1b" not in text
        assert "\x00" not in text
