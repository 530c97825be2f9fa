"""Who holds what of a model, and what is gone with whom."""

from harness.examples import paper_job, placed_job, uneven_job
from recycle.holding import live_holders, lone_units, sole_units, units, units_of, units_text
from recycle.job import Server


def named(*names):
    return tuple(map(Server.parse, names))


def test_where_pipelines_are_alike_a_stage_is_what_its_servers_hold():
    for job in (paper_job(), placed_job("v-shaped")):
        assert list(units(job)) == list(range(job.depth))
        assert [units_of(job, each) for each in job.servers()] == [(each.stage,) for each in job.servers()]
    job = paper_job()
    assert sole_units(job, Server(0, 2), named("W0_0", "W1_1")) == (2,)
    assert sole_units(job, Server(0, 2), named("W1_2")) == ()
    assert lone_units(job, named("W0_0", "W1_0", "W1_1")) == {1: Server(1, 1)}
    assert (units_text(job, [2]), units_text(job, [2, 3])) == ("stage 2", "stages 2, 3")


def test_where_they_are_not_alike_it_is_a_chunk():
    job = uneven_job()
    assert list(units(job)) == [0, 1, 2, 3]
    assert [units_of(job, each) for each in job.servers()] == [(0, 1), (2, 3), (0,), (1, 2), (3,)]
    assert sole_units(job, Server(1, 1), named("W0_0", "W1_0")) == (2,)
    assert sole_units(job, Server(1, 1), named("W0_0", "W0_1")) == ()
    assert lone_units(job, named("W0_0", "W1_1")) == {0: Server(0, 0), 2: Server(1, 1)}
    assert units_text(job, [1, 2]) == "chunks 1, 2"
    live = live_holders(job, named("W0_0", "W1_1", "W1_2"))
    assert live == (named("W0_0"), named("W0_0", "W1_1"), named("W1_1"), named("W1_2"))
