import json

import pytest

from harness.examples import QUICK, paper_plan, placed_job
from recycle.errors import JobError
from recycle.holding import with_layout, with_own_layout
from recycle.job import Server
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.placing.returning import return_home
from recycle.plan.checker import check_plan
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.plan.moves import Situation
from recycle.planner.assemble import unlimited_baseline
from recycle.planner.make import make_plan
from recycle.planner.moving import ChunkMover, weigh_move

TWO = (Server(0, 3), Server(1, 3))


def test_layers_move_where_a_stage_lost_most_of_its_servers():
    decision, told = weigh_move(paper_plan(failed=TWO), 16, 10.0, OF_A_CLUSTER)
    assert decision.moves
    assert decision.gained > 0
    assert " to copy, " in decision.line
    assert told
    assert not [each for each in told for server in TWO if str(server) in each]


def test_servers_that_change_all_the_time_keep_their_layers():
    decision, _ = weigh_move(paper_plan(failed=TWO), 16, 10.0, Outlook(60.0))
    assert not decision.moves
    assert decision.line.startswith("re-route on, moving loses ")


@pytest.mark.parametrize("limit", [2, 3, 6])
def test_an_iteration_takes_as_long_as_its_plan_says_whatever_the_memory(limit):
    plan = paper_plan(failed=TWO, limit=limit, released=0)
    decision, _ = weigh_move(plan, 16, unlimited_baseline(plan.job) * 0.5, OF_A_CLUSTER)
    assert f"instead of {plan.period * 0.5:g} s an iteration" in decision.line


def test_nothing_is_weighed_where_nothing_is_dead_or_too_few_are_left():
    assert weigh_move(paper_plan(failed=()), 16, 10.0, OF_A_CLUSTER) is None
    alone = paper_plan(failed=(Server(1, 0),), pipelines=2, stages=1)
    # One server cannot form two pipelines.
    assert weigh_move(alone, 4, 10.0, OF_A_CLUSTER) is None


def test_a_model_has_a_layer_for_each_stage():
    with pytest.raises(JobError, match="layers is 3: 4 stages need at least 4 layers"):
        weigh_move(paper_plan(), 3, 10.0, OF_A_CLUSTER)


def test_an_explanation_ends_with_the_decision(run, tmp_path):
    save_plan(paper_plan(failed=TWO), tmp_path / "plan.json")
    out = run("explain", tmp_path / "plan.json", "--layers", "16")[1]
    assert "Placement: move layers, which gains " in out
    assert "  pipeline " in out
    assert "Placement: re-route on" in run("explain", tmp_path / "plan.json", "--mtbf", "10s")[1]
    report = json.loads(run("explain", tmp_path / "plan.json", "--json")[1])
    assert report["placement"]["moves"] is True


def situation_of(plan, home):
    return Situation(plan, home, 1.0, 10**6)


def test_in_a_run_chunks_of_the_dead_move_within_their_pipeline_and_all_micro_batches_stay():
    home = with_own_layout(placed_job("consecutive:2", pipelines=3, servers=4, micro_batches=6, limit=24))
    first, around = (make_plan(home, dead, Mode(), QUICK) for dead in ((), (Server(1, 2),)))
    mover = ChunkMover(first, OF_A_CLUSTER)
    proposal = mover.weigh(situation_of(around, home))
    assert proposal.line.startswith("move layers, which gains ")
    job = proposal.plan.job
    assert proposal.plan.period < around.period
    assert proposal.plan.baseline == first.baseline
    assert sum(job.loads) == sum(home.loads)
    assert [each.chunks for each in job.layout[1].servers] == [(0, 1), (2, 3, 4), (), (5, 6, 7)]
    assert job.placements[0] == home.placements[0]
    assert check_plan(proposal.plan) == ()
    # There is nothing better than what it has proposed, nor than home where nobody is dead.
    again = mover.weigh(situation_of(proposal.plan, home))
    assert again is None or again.plan is None
    assert mover.weigh(situation_of(first, home)) is None
    alone = with_own_layout(placed_job("consecutive:2", pipelines=3, servers=2, micro_batches=6, limit=2))
    around_many = make_plan(alone, (Server(0, 1), Server(1, 1), Server(0, 0)), Mode(), QUICK)
    stays = ChunkMover(first, OF_A_CLUSTER)
    # In a later view that is the same, nobody could tell it from a decision that is still to come.
    for _ in range(2):
        said = stays.weigh(situation_of(around_many, alone))
        assert said == ("re-route on: there is no other placement to move to", None)
    hurried = ChunkMover(first, Outlook(0.5)).weigh(situation_of(around, home))
    assert hurried.plan is None


def test_in_a_run_servers_change_their_pipeline_where_that_is_quicker_and_find_home_again():
    home = with_own_layout(placed_job("consecutive:2", pipelines=3, servers=4, micro_batches=12, limit=12))
    first, around = (make_plan(home, dead, Mode(), QUICK) for dead in ((), (Server(1, 2),)))
    mover = ChunkMover(first, OF_A_CLUSTER)
    proposal = mover.weigh(situation_of(around, home))
    assert proposal.line.startswith("move layers, which gains ")
    assert "; pipeline 0 goes on with 4 servers and borrows 4 servers, W1_0 first; " in proposal.line
    assert proposal.line.endswith("; pipeline 1 is given up, and its 3 servers used elsewhere: 3 servers, W1_0 first")
    moved = proposal.plan
    assert check_plan(moved) == ()
    assert moved.job.loads == (27, 0, 9)
    # Eight and three servers: no plan of eleven is a tenth quicker.
    assert moved.period < 1.1 * sum(home.loads) * len(home.stages) * 3 / 11
    # One of those that it has borrowed dies.
    (lost,) = {Server(1, 1)} & set(moved.job.crews[0])
    again = make_plan(moved.job, (Server(1, 2), lost), Mode(), QUICK)
    assert check_plan(again) == ()
    assert mover.weigh(situation_of(again, home)).plan.period < again.period
    # Both are back, and hold what they get at once; then all go home.
    layout = return_home(home, home.layout, moved.job.layout, [Server(1, 2)], home.servers())
    back = make_plan(with_layout(home, layout), (), Mode(), QUICK)
    assert check_plan(back) == ()
    proposal = mover.weigh(situation_of(back, home))
    assert proposal.plan.job == home
    assert "; pipeline 1 begins with 4 servers, W1_0 first" in proposal.line
