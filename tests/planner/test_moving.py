from harness.examples import QUICK, placed_job
from recycle.holding import with_layout, with_own_layout
from recycle.job import Server
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.placing.returning import return_home
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.moves import Situation
from recycle.planner.make import make_plan
from recycle.planner.moving import ChunkMover

TWO = (Server(0, 3), Server(1, 3))


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
