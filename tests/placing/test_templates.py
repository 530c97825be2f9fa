from hypothesis import given
from hypothesis import strategies as st

from recycle.placing.templates import make_templates
from tests.placing.models import cuts, even_model, longest, models


@given(models(), st.integers(1, 8))
def test_every_template_is_the_best_of_all_cuts(model, micro_batches):
    templates = make_templates(model, 8, micro_batches)
    for servers in range(1, 9):
        tried = [(longest(model, runs, micro_batches), runs) for runs in cuts(model, servers)]
        possible = [each for each in tried if each[0] is not None]
        assert (servers in templates.by_servers) == bool(possible)
        if possible:
            template = templates.by_servers[servers]
            assert template.longest == min(possible)[0] == longest(model, template.runs, micro_batches)
            # Of equal ones the first server has the fewest layers.
            assert template.runs[0] == min(possible)[1][0]


def test_layers_that_do_not_divide_are_cut_as_evenly_as_they_can_be():
    templates = make_templates(even_model(96, optimizer=3), 64, 8)
    assert sorted(templates.by_servers) == list(range(1, 65))
    for servers, template in templates.by_servers.items():
        assert max(end - first for first, end in template.runs) == -(-96 // servers)
        assert template.longest == -(-96 // servers) * (8 * 3 + 3)
