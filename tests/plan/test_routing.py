"""Which servers may execute a micro-batch: what holds for either routing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.plan.mode import ROUTINGS, Mode


@st.composite
def situations(draw):
    pipelines = draw(st.integers(1, 6))
    live = draw(st.sets(st.integers(0, pipelines - 1), min_size=1))
    return draw(st.integers(0, pipelines - 1)), tuple(sorted(live)), draw(st.permutations(range(pipelines)))


@pytest.mark.parametrize("name", ROUTINGS)
@given(situation=situations())
def test_somebody_alive_may_execute_it_and_its_home_always(name, situation):
    home, live, _ = situation
    hosts = Mode(routing=name).hosts(home, live)
    assert hosts
    assert list(hosts) == sorted(set(hosts) & set(live))
    assert (home in hosts) == (home in live)


@pytest.mark.parametrize("name", ROUTINGS)
@given(situation=situations())
def test_which_pipeline_is_which_does_not_matter(name, situation):
    """Catalogues and the runtime rename the pipelines of a plan."""
    home, live, names = situation
    hosts = Mode(routing=name).hosts
    renamed = hosts(names[home], tuple(sorted(names[each] for each in live)))
    assert renamed == tuple(sorted(names[each] for each in hosts(home, live)))


def test_a_healthy_micro_batch_stays_at_home_or_may_go_anywhere():
    assert Mode().hosts(1, (0, 1, 3)) == (1,)
    assert Mode().hosts(2, (0, 1, 3)) == Mode(routing="free").hosts(1, (0, 1, 3)) == (0, 1, 3)
