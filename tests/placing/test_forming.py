"""Pipelines out of live servers: every live set has a layout, and every return finds one."""

from hypothesis import given
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.holding import holders, own_layout, with_layout, with_own_layout
from recycle.job import Server
from recycle.placing.forming import form
from recycle.placing.returning import return_home


def filled_and_drained(_model):
    return lambda template, micro_batches: template.longest * (micro_batches + template.servers - 1)


@st.composite
def deaths(draw, least=1):
    """A job of up to three pipelines, and who of its servers live."""
    pipelines, depth, chunks = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    limit = draw(st.sampled_from([chunks, chunks + 1, depth * chunks]))
    job = with_own_layout(placed_job(f"consecutive:{chunks}", pipelines, depth, 4, limit))
    servers = job.servers()
    return job, draw(st.sets(st.sampled_from(servers), min_size=min(least, len(servers))))


def require_sound(job, layout, live):
    """All live servers hold something, all pipelines the whole model on them, and no micro-batch is lost."""
    found = with_layout(job, layout)
    assert sum(found.loads) == sum(job.loads)
    assert all(layout[each.pipeline].servers[each.stage].chunks for each in live)
    assert {each for crew in found.crews for each in crew} == set(live)
    pipelines = {pipeline for pipeline, crew in enumerate(found.crews) if crew}
    assert pipelines == {pipeline for pipeline, load in enumerate(found.loads) if load}
    assert all(set(held) == pipelines for held in holders(found))
    return found


@given(deaths())
def test_every_live_set_forms_pipelines_that_hold_the_model_or_is_too_small(case):
    job, live = case
    layout = form(job, job, live, filled_and_drained)
    count, room = len(job.stages), own_layout(job)[0].servers[0].limit
    least = min(2, job.pipelines)
    if layout is None:
        # Each pipeline takes as many servers as have memory for its chunks.
        shortest = -(-count // room)
        assert not any(shortest * each <= len(live) <= count * each for each in range(least, job.pipelines + 1))
        return
    found = require_sound(job, layout, live)
    assert sum(map(bool, found.crews)) >= least


@given(deaths(least=2), st.data())
def test_who_comes_back_finds_a_place_whoever_else_is_dead(case, data):
    job, live = case
    layout = form(job, job, live, filled_and_drained)
    if layout is None:
        return
    dead = sorted(set(job.servers()) - live)
    later = set(data.draw(st.lists(st.sampled_from(sorted(live)), max_size=1)))
    returned = data.draw(st.sets(st.sampled_from(dead))) if dead else set()
    now = (live - later) | returned
    back = return_home(job, own_layout(job), layout, returned, now)
    if back == own_layout(job):
        return
    found = with_layout(job, back)
    assert sum(found.loads) == sum(job.loads)
    assert all(back[each.pipeline].servers[each.stage].chunks for each in now)
    # Who died meanwhile and has not been replaced is the only one without whom a pipeline may be.
    assert {each for crew in found.crews for each in crew} - now <= later


def named(*names):
    return {Server.parse(name) for name in names}


def crews(job, layout):
    return [[str(server) for server in crew] for crew in with_layout(job, layout).crews]


def test_a_pipeline_borrows_from_one_that_is_given_up_and_all_find_home():
    # Each server has the memory for two of four chunks.
    job = with_own_layout(placed_job("consecutive:2", 3, 2, 4, 2))
    home, live = own_layout(job), named("W0_0", "W0_1", "W1_0", "W2_0")
    layout = form(job, job, live, filled_and_drained)
    assert crews(job, layout) == [["W0_0", "W0_1"], ["W2_0", "W1_0"], []]
    assert [each.micro_batches for each in layout] == [6, 6, 0]
    assert layout[2].servers[0].pipeline == 1
    # Its pipeline is there, so that it takes a part of it.
    live |= named("W1_1")
    layout = return_home(job, home, layout, named("W1_1"), live)
    assert [sorted(crew) for crew in crews(job, layout)] == [["W0_0", "W0_1"], ["W1_0", "W1_1", "W2_0"], []]
    # That of W2_1 is given up.
    live |= named("W2_1")
    layout = return_home(job, home, layout, named("W2_1"), live)
    assert sorted(map(len, crews(job, layout))) == [0, 3, 3]


def test_where_all_pipelines_are_as_long_as_they_can_be_the_servers_are_shared_out_anew():
    job = with_own_layout(placed_job("standard", 3, 2, 4, 2))
    home, live = own_layout(job), named("W0_0", "W0_1", "W1_0", "W2_0")
    layout = form(job, job, live, lambda _model: lambda template, load: 100 * load // template.servers)
    assert sorted(map(len, crews(job, layout))) == [0, 2, 2]
    layout = return_home(job, home, layout, named("W2_1"), live | named("W2_1"))
    assert sorted(map(len, crews(job, layout))) == [1, 2, 2]
    assert [each.micro_batches for each in layout] == [4, 4, 4]
