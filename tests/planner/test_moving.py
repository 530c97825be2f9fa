import msgspec

from harness.examples import QUICK, placed_job
from recycle.holding import with_layout, with_own_layout
from recycle.job import Server
from recycle.placement import PlacedPipeline
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.placing.returning import return_home
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.moves import Seen, Situation
from recycle.planner.make import make_plan
from recycle.planner.moving import ChunkMover

TWO = (Server(0, 3), Server(1, 3))


def running(form, **shape):
    """The placement that a run begins with, its first plan, and what weighs moves by speed in it."""
    home = with_own_layout(placed_job(form, **shape))
    first = make_plan(home, (), Mode(), QUICK)
    return home, first, ChunkMover(first, OF_A_CLUSTER, by_speed=True)


def situation_of(plan, home, shares=None):
    return Situation(plan, home, 1.0, 10**6, Seen(), shares or {})


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
    alone = placed_job("consecutive:2", pipelines=3, servers=2, micro_batches=6, limit=2)
    around_many = make_plan(alone, (Server(0, 1), Server(1, 1), Server(0, 0)), Mode(), QUICK)
    stays = ChunkMover(first, OF_A_CLUSTER)
    # In a later view that is the same, nobody could tell it from a decision that is still to come.
    for _ in range(2):
        said = stays.weigh(situation_of(around_many, with_own_layout(alone)))
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


def shown(job, **slow):
    """Everybody keeps step, but for some."""
    return {server: slow.get(str(server), 1.0) for server in job.servers()}


def weigh_twice(mover, situation):
    """What comes of it when a run shows the same twice."""
    assert mover.weigh(situation) is None
    return mover.weigh(situation)


def test_a_slow_server_gets_fewer_layers_and_its_own_again_when_it_is_as_fast_as_before():
    home, first, mover = running("consecutive:2", pipelines=3, servers=2, micro_batches=12, limit=24)
    # What clocks and neighbours do is no reason, nor what does not amount to a whole slot, nor what is seen only once.
    for share in (0.95, 0.8, 0.8, 1.0, 0.5, 1.0, 0.5):
        assert mover.weigh(situation_of(first, home, shown(home, W1_1=share))) is None
    found = mover.weigh(situation_of(first, home, shown(home, W1_1=0.5)))
    assert found.line.startswith("W1_1 computes at 50% of its peers' speed; move layers, which gains ")
    job = found.plan.job
    assert [[server.speed for server in each.servers] for each in job.layout][1] == [100, 50]
    assert len(job.layout[1].servers[1].chunks) == 1
    assert sum(job.loads) == sum(home.loads)
    assert check_plan(found.plan) == ()
    # With the layers where they are, and where the plan knows of it, the slow server holds everybody up.
    slowly = make_plan(at_speed(home, Server(1, 1), 50), (), Mode(), QUICK)
    assert found.plan.period < slowly.period
    for again in ({}, shown(home, W1_1=0.49), shown(home)):
        assert mover.weigh(situation_of(found.plan, home, again)) is None
    back = mover.weigh(situation_of(found.plan, home, shown(home)))
    assert back.line.startswith("W1_1 is as fast as its peers again; move layers, which gains ")
    assert back.plan.job == home


def test_a_server_that_is_too_slow_to_help_is_left_out_until_a_death_needs_it():
    home, first, mover = running("standard", pipelines=2, servers=2, micro_batches=8, limit=16)
    found = weigh_twice(mover, situation_of(first, home, shown(home, W1_1=0.2)))
    assert found.line.startswith("W1_1 computes at 20% of its peers' speed; move layers, which gains ")
    assert found.line.endswith("; W1_1 is too slow to help, and is left out")
    moved = found.plan
    assert [server.chunks for server in moved.job.layout[1].servers] == [(0, 1), ()]
    assert moved.programs[Server(1, 1)] == ()
    assert check_plan(moved) == ()
    # With the fewest micro-batches for its pipeline that are possible, it would hold everybody up.
    layout = at_speed(home, Server(1, 1), 20).layout
    loads = [(16 - count, count) for count in range(1, 16)]
    kept = [with_layout(home, tuple(map(PlacedPipeline, load, (each.servers for each in layout)))) for load in loads]
    assert moved.period < min(make_plan(each, (), Mode(), QUICK).period for each in kept)
    others = {server: 1.0 for server in home.servers() if server != Server(1, 1)}
    assert mover.weigh(situation_of(moved, home, others)) is None
    # Its pipeline loses nothing that the others could not do.
    around = make_plan(moved.job, [Server(0, 0)], Mode(), QUICK)
    again = mover.weigh(situation_of(around, home)).plan
    assert [[server.chunks for server in each.servers] for each in again.job.layout] == [[(), (0, 1)], [(0, 1), ()]]
    alone = make_plan(again.job, [Server(0, 0), Server(1, 0)], Mode(), QUICK)
    needed = mover.weigh(situation_of(alone, home))
    assert needed.line.endswith("; W1_1 is of use again")
    assert check_plan(needed.plan) == ()
    assert needed.plan.period < alone.period
    assert [each.servers[1].speed for each in needed.plan.job.layout] == [100, 20]


def test_who_is_left_out_is_tried_again_after_ever_longer_times():
    home, first, mover = running("standard", pipelines=2, servers=2, micro_batches=8, limit=16)
    moved = weigh_twice(mover, situation_of(first, home, shown(home, W1_1=0.2))).plan
    others = {server: 1.0 for server in home.servers() if server != Server(1, 1)}

    def seen(plan, seconds, shares):
        return mover.weigh(situation_of(plan, home, shares)._replace(seen=Seen(seconds)))

    # All wait for it in some ten iterations of five seconds.
    for seconds in (0.0, 4999.0):
        assert seen(moved, seconds, others) is None
    again = seen(moved, 5000.0, others)
    assert again.line.startswith("W1_1 may be faster than when it was left out; move layers, which gains ")
    assert again.line.endswith("; W1_1 is of use again")
    assert again.plan.job == home
    # That it is not needs to be seen only once.
    out = seen(again.plan, 5100.0, shown(home, W1_1=0.2))
    assert out.plan.job == moved.job
    for seconds in (5200.0, 15099.0):
        assert seen(moved, seconds, others) is None
    again = seen(moved, 15100.0, others)
    assert again.plan.job == home
    for seconds in (15200.0, 50000.0):
        assert seen(again.plan, seconds, shown(home)) is None


def at_speed(job, server, speed):
    """With one server slow, and nothing else changed."""
    layout = list(job.layout)
    servers = list(layout[server.pipeline].servers)
    servers[server.stage] = msgspec.structs.replace(servers[server.stage], speed=speed)
    layout[server.pipeline] = msgspec.structs.replace(layout[server.pipeline], servers=tuple(servers))
    return with_layout(job, tuple(layout))


def test_a_slow_server_with_one_chunk_gets_fewer_micro_batches_and_nothing_is_copied():
    home, first, mover = running("standard", pipelines=3, servers=2, micro_batches=6, limit=8)
    found = weigh_twice(mover, situation_of(first, home, shown(home, W1_1=0.5)))
    assert "; share out micro-batches anew, which gains " in found.line
    job = found.plan.job
    assert job.placements == home.placements
    assert job.loads[1] < 6 < job.loads[0]
    assert sum(job.loads) == 18


def test_a_death_beside_a_slow_server_is_weighed_with_its_speed():
    home, _, mover = running("consecutive:2", pipelines=3, servers=3, micro_batches=12, limit=24)
    known = at_speed(home, Server(1, 1), 50)
    around = make_plan(known, (Server(1, 2),), Mode(), QUICK)
    found = mover.weigh(situation_of(around, home))
    servers = found.plan.job.layout[1].servers
    assert [server.speed for server in servers] == [100, 50, 100]
    # Of equal ones, W1_1 would have had one more.
    assert [server.chunks for server in servers] == [(0, 1, 2, 3), (4, 5), ()]
