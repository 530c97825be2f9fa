from itertools import combinations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from recycle.placing.fleet import choose_fleet
from recycle.placing.layers import Layer, Model
from recycle.placing.templates import make_templates
from tests.placing.models import even_model, fleets, models


def filled_and_drained(template, micro_batches):
    return template.longest * (micro_batches + template.servers - 1)


def least_period(templates, sizes, micro_batches):
    """The least time of some pipelines, every share of the micro-batches tried."""
    first, *rest = sizes
    template = templates.by_servers[first]
    if not rest:
        return filled_and_drained(template, micro_batches)
    return min(
        max(filled_and_drained(template, mine), least_period(templates, rest, micro_batches - mine))
        for mine in range(1, micro_batches - len(rest) + 1)
    )


# Pipelines of 3 and of 4 servers: the longer one would finish both micro-batches before the other finishes one.
TWO_SPEEDS = Model(tuple(Layer(state=state) for state in (0, 0, 1, 1)), 3)


@given(models(5), st.integers(1, 9), st.integers(1, 7), st.integers(0, 2), st.integers(0, 3))
@example(TWO_SPEEDS, 7, 2, 1, 0)
@example(even_model(2), 4, 4, 0, 1)
def test_a_fleet_is_the_best_of_all_templates_and_shares(model, live, micro_batches, failures, most):
    templates = make_templates(model, 5, 1)
    sizes = sorted(templates.by_servers)
    assume(sizes)
    fleet = choose_fleet(templates, live, micro_batches, filled_and_drained, failures, most)
    tried = [
        least_period(templates, choice, micro_batches)
        for choice in fleets(sizes, live, failures + 1)
        if len(choice) <= micro_batches and (not most or (len(choice) <= most and sum(choice) == live))
    ]
    assert (fleet is not None) == bool(tried)
    if fleet is not None:
        assert fleet.period == min(tried)
        assert fleet.period == max(filled_and_drained(each.template, each.micro_batches) for each in fleet.pipelines)
        assert sum(each.micro_batches for each in fleet.pipelines) == micro_batches
        assert fleet.servers == live if most else fleet.servers <= live
        assert min(each.micro_batches for each in fleet.pipelines) >= 1


@given(models(4), st.integers(0, 2), st.integers(0, 5))
def test_a_copy_of_every_layer_survives_as_many_failures_as_were_asked_for(model, failures, more):
    templates = make_templates(model, 4, 1)
    assume(templates.by_servers)
    live = (failures + 1) * templates.least + more
    fleet = choose_fleet(templates, live, 12, filled_and_drained, failures)
    assert fleet is not None
    held = [run for each in fleet.pipelines for run in each.template.runs]
    for dead in combinations(range(len(held)), failures):
        left = [run for server, run in enumerate(held) if server not in dead]
        assert all(any(first <= layer < end for first, end in left) for layer in range(len(model.layers)))


def test_too_few_servers_or_micro_batches_form_no_fleet():
    templates = make_templates(even_model(8, memory=20, state=3), 8, 6)
    assert templates.least == 2
    assert choose_fleet(templates, 1, 6, filled_and_drained) is None
    assert choose_fleet(templates, 3, 6, filled_and_drained, failures=1) is None
    assert choose_fleet(templates, 4, 1, filled_and_drained, failures=1) is None
    assert choose_fleet(templates, 4, 2, filled_and_drained, failures=1) is not None
