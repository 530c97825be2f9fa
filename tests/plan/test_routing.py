"""Routing rules: what every one of them has to be, and which micro-batches are interchangeable under it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.plan.mode import ROUTING_RULES, interchangeable


@st.composite
def situations(draw):
    pipelines = draw(st.integers(1, 6))
    live = draw(st.sets(st.integers(0, pipelines - 1), min_size=1))
    return draw(st.integers(0, pipelines - 1)), tuple(sorted(live)), draw(st.permutations(range(pipelines)))


@pytest.mark.parametrize("name", ROUTING_RULES)
@given(situation=situations())
def test_somebody_alive_may_execute_it_and_its_home_always(name, situation):
    home, live, _ = situation
    hosts = ROUTING_RULES[name].hosts(home, live)
    assert hosts
    assert list(hosts) == sorted(set(hosts) & set(live))
    assert (home in hosts) == (home in live)


@pytest.mark.parametrize("name", ROUTING_RULES)
@given(situation=situations())
def test_which_pipeline_is_which_does_not_matter(name, situation):
    """Catalogues and the runtime rename the pipelines of a plan."""
    home, live, names = situation
    hosts = ROUTING_RULES[name].hosts
    renamed = hosts(names[home], tuple(sorted(names[each] for each in live)))
    assert renamed == tuple(sorted(names[each] for each in hosts(home, live)))


@pytest.mark.parametrize("name", ROUTING_RULES)
@given(situation=situations())
def test_a_rule_is_what_it_says_of_itself(name, situation):
    home, live, _ = situation
    rule = ROUTING_RULES[name]
    if rule.keeps_home and home in live:
        assert rule.hosts(home, live) == (home,)
    if rule.any_live:
        assert rule.hosts(home, live) == live


def test_micro_batches_of_one_home_are_interchangeable_and_of_all_where_any_may_move():
    assert interchangeable(ROUTING_RULES["home"], 2, 3) == [range(3), range(3, 6)]
    assert interchangeable(ROUTING_RULES["free"], 2, 3) == [range(6)]
