from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.errors import NoPlanError
from recycle.job import Server
from recycle.placing.fleet import Fleet, Formed
from recycle.placing.templates import Template, make_templates
from recycle.placing.transition import least_copies
from tests.placing.models import even_model, models


def fleet_of(*pipelines):
    return Fleet(tuple(Formed(Template(tuple(runs), 1), 1) for runs in pipelines), 1)


def copies_of(model, holding, fleet):
    return least_copies(model, holding, {server: server.pipeline for server in holding}, fleet)


def layers_of(run):
    return set(range(*run))


@given(models(6), st.data())
def test_no_assignment_of_the_places_copies_less(model, data):
    count = len(model.layers)
    run = st.tuples(st.integers(0, count - 1), st.integers(1, count)).filter(lambda each: each[0] < each[1])
    held = [(0, count), *data.draw(st.lists(run, max_size=4))]
    holding = {Server(place // 2, place % 2): each for place, each in enumerate(held)}
    templates = make_templates(model, 3, 1).by_servers or {1: Template(((0, count),), 1)}
    sizes = data.draw(st.lists(st.sampled_from(sorted(templates)), min_size=1, max_size=2))
    while sum(sizes) > len(held):
        sizes.pop()
    if not sizes:
        return
    fleet = fleet_of(*(templates[size].runs for size in sizes))
    runs = [run for size in sizes for run in templates[size].runs]

    def missing(run, server):
        return sum(model.layers[layer].size for layer in layers_of(run) - layers_of(holding[server]))

    found = copies_of(model, holding, fleet)
    tried = (sum(map(missing, runs, order)) for order in permutations(holding, len(runs)))
    assert found.size == min(tried)

    taken = [server for places in found.places for server in places]
    assert len(set(taken)) == len(taken)
    assert set(taken) | set(found.unused) == set(holding)
    gets = {server: set(layers_of(holding[server])) for server in holding}
    for layers, source, target in found.copies:
        assert layers_of(layers) <= layers_of(holding[source])
        assert not layers_of(layers) & gets[target], "a layer is copied to who has it"
        gets[target] |= layers_of(layers)
    for server, wanted in zip(taken, runs, strict=True):
        assert layers_of(wanted) <= gets[server]
    assert found.size == sum(model.size(layers) for layers, *_ in found.copies)


def test_who_keeps_their_layers_copy_nothing():
    model = even_model(8)
    holding = {Server(d, s): (4 * s, 4 * s + 4) for d in range(2) for s in range(2)}
    found = copies_of(model, holding, fleet_of(((0, 4), (4, 8)), ((0, 4), (4, 8))))
    assert (found.size, found.copies, found.unused) == (0, (), ())
    assert found.stories == ()
    assert {server.pipeline for server in found.places[0]} in ({0}, {1})


def test_a_layer_that_nobody_holds_is_named():
    model = even_model(4)
    with pytest.raises(NoPlanError, match="layer 2 is held by no live server"):
        copies_of(model, {Server(0, 0): (0, 2), Server(1, 0): (0, 2)}, fleet_of(((0, 4),)))


def test_a_pipeline_borrows_a_server_and_one_that_is_too_short_is_given_up():
    model = even_model(8, size=10)
    thirds = ((0, 3), (3, 6), (6, 8))
    holding = {Server(d, s): run for d in range(2) for s, run in enumerate(thirds)}
    # Pipeline 1 lost its middle server, and pipeline 2 all but its last one.
    del holding[Server(1, 1)]
    holding[Server(2, 2)] = thirds[2]
    found = copies_of(model, holding, fleet_of(thirds, thirds))
    # The last server of pipeline 1 or 2 becomes a middle one and copies three layers of ten bytes.
    assert found.size == 30
    assert set(found.stories) == {
        "pipeline 1 goes on with 2 servers and borrows W2_2",
        "pipeline 2 is given up, and its 1 server used elsewhere: W2_2",
    }


def test_who_is_of_the_same_pipeline_is_asked_first():
    model = even_model(4, size=5)
    holding = {Server(0, 0): (0, 4), Server(1, 0): (0, 4), Server(1, 1): (0, 2)}
    found = copies_of(model, holding, fleet_of(*[((0, 4),)] * 3))
    assert found.copies == (((2, 4), Server(1, 0), Server(1, 1)),)


def test_sources_take_turns():
    model = even_model(4, size=5)
    holding = {Server(0, 0): (0, 4), Server(1, 0): (0, 4), Server(2, 0): (0, 1), Server(3, 0): (0, 1)}
    found = copies_of(model, holding, fleet_of(*[((0, 4),)] * 4))
    assert {copy.source for copy in found.copies} == {Server(0, 0), Server(1, 0)}
    assert (found.size, found.busiest) == (30, 15)
