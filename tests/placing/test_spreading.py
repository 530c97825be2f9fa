from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.holding import own_layout, with_own_layout
from recycle.job import Job, Server, Stage
from recycle.placement import PlacedServer
from recycle.placing.returning import return_home
from recycle.placing.spreading import spread


@st.composite
def pipelines(draw):
    """A job of up to six chunks, the servers of its pipeline, who of them live, and what they hold now."""
    count = draw(st.integers(2, 6))
    costs = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    few = st.integers(0, 2)
    stages = tuple(Stage(cost, cost, cost, 1, 0, 1 + draw(few), 0, 9, draw(few), draw(few)) for cost in costs)
    cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=3)))
    limits = st.integers(count, 20)
    home = tuple(
        PlacedServer(tuple(range(*run)), draw(limits), draw(st.sampled_from([50, 100])))
        for run in pairwise([0, *cuts, count])
    )
    live = draw(st.sets(st.sampled_from(range(len(home))), min_size=1))
    held = [draw(st.sets(st.sampled_from(range(count)))) for _ in home]
    return Job(1, 1, stages, (0,) * (count - 1)), home, live, held


def room(job, server, chunks):
    return (
        server.limit
        + sum(job.stages[each].state for each in server.chunks)
        - sum(job.stages[each].state for each in chunks)
    )


@given(pipelines())
def test_no_cut_that_fits_is_quicker_and_none_as_quick_copies_less(case):
    job, home, live, held = case
    places, count = sorted(live), len(job.stages)
    found = spread(job, home, live, held)
    fitting = []
    for cuts in combinations(range(1, count), len(places) - 1):
        runs = dict(zip(places, (tuple(range(*run)) for run in pairwise([0, *cuts, count])), strict=True))
        if all(job.needs(run) <= room(job, home[place], run) for place, run in runs.items()):
            longest = max(sum(home[place].time(job.stages[each].work) for each in run) for place, run in runs.items())
            fitting.append((longest, sum(len(set(run) - held[place]) for place, run in runs.items()), runs))
    if not fitting:
        assert found is None
        return
    least = min(fitting, key=lambda each: each[:2])
    runs = {place: server.chunks for place, server in enumerate(found) if server.chunks}
    assert (*least[:2], runs) in fitting
    assert [server.limit for server in found] == [
        room(job, home[place], server.chunks) if server.chunks else home[place].limit
        for place, server in enumerate(found)
    ]


def test_who_comes_back_gets_its_chunks_and_all_bring_what_they_brought_at_home():
    job = with_own_layout(placed_job("consecutive:2", 2, 3))
    home = own_layout(job)
    live = {Server(pipeline, place) for pipeline in range(2) for place in range(3)} - {Server(1, 1)}
    moved = spread(job, home[1].servers, {0, 2}, [(0, 1), (2, 3), (4, 5)])
    assert [server.chunks for server in moved] == [(0, 1, 2), (), (3, 4, 5)]
    layout = (home[0].__class__(5, home[0].servers), home[1].__class__(3, moved))
    assert return_home(job, home, layout, [Server(1, 1)], live | {Server(1, 1)}) == home
    # Where another one of the pipeline has died meanwhile, the two that live share its chunks.
    again = return_home(job, home, layout, [Server(1, 1)], (live | {Server(1, 1)}) - {Server(1, 0)})
    assert [server.chunks for server in again[1].servers] == [(), (0, 1, 2), (3, 4, 5)]
