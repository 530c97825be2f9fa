from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from recycle.job import Server
from recycle.placing.fleet import Fleet, Formed
from recycle.placing.templates import Template, make_templates
from recycle.placing.transition import stories, take_places
from tests.placing.models import models


def fleet_of(*pipelines):
    return Fleet(tuple(Formed(Template(tuple(runs), 1), 1) for runs in pipelines), 1)


def take(fleet, held):
    return take_places(fleet, held, {server: server.pipeline for server in held})


@given(models(6), st.data())
def test_no_assignment_of_the_places_copies_less(model, data):
    count = len(model.layers)
    run = st.tuples(st.integers(0, count - 1), st.integers(1, count)).filter(lambda each: each[0] < each[1])
    drawn = [(0, count), *data.draw(st.lists(run, max_size=4))]
    held = {Server(place // 2, place % 2): range(*each) for place, each in enumerate(drawn)}
    templates = make_templates(model, 3, 1).by_servers or {1: Template(((0, count),), 1)}
    sizes = data.draw(st.lists(st.sampled_from(sorted(templates)), min_size=1, max_size=2))
    while sum(sizes) > len(held):
        sizes.pop()
    if not sizes:
        return
    runs = [range(*run) for size in sizes for run in templates[size].runs]

    def missing(run, server):
        return len({*run} - {*held[server]})

    found = take(fleet_of(*(templates[size].runs for size in sizes)), held)
    tried = (sum(map(missing, runs, order)) for order in permutations(held, len(runs)))
    assert sum(found.gained.values()) == min(tried)

    taken = [server for crew in found.crews.values() for server in crew]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(held)
    assert [len(crew) for crew in found.crews.values()] == sizes
    assert found.gained == {server: missing(run, server) for server, run in zip(taken, runs, strict=True)}


def test_a_pipeline_borrows_a_server_and_one_that_is_too_short_is_given_up():
    thirds = ((0, 3), (3, 6), (6, 8))
    held = {Server(d, s): range(*run) for d in range(2) for s, run in enumerate(thirds)}
    # Pipeline 1 lost its middle server, and pipeline 2 all but its last one.
    del held[Server(1, 1)]
    held[Server(2, 2)] = range(*thirds[2])
    found = take(fleet_of(thirds, thirds), held)
    # The last server of pipeline 1 or 2 becomes a middle one and copies three layers.
    assert sum(found.gained.values()) == 3
    assert set(stories(found.crews, {server: server.pipeline for server in held})) == {
        "pipeline 1 goes on with 2 servers and borrows W2_2",
        "pipeline 2 is given up, and its 1 server used elsewhere: W2_2",
    }
