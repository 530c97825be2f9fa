"""Who is too slow to help: with the measure of what the slowest server takes, where pipelines are spread anew."""

import math

from hypothesis import given
from hypothesis import strategies as st

from harness.examples import placed_job
from recycle.holding import own_layout, with_own_layout
from recycle.placing.leaving import servers_of_use
from recycle.placing.spreading import spread, with_speeds

STOPPED = 1
"""Percent: whatever such a server holds takes longer than all that another one could."""


@st.composite
def fleets(draw):
    """A job of up to two pipelines of up to three servers, their speeds, and who lives."""
    job = with_own_layout(placed_job("consecutive:2", draw(st.integers(1, 2)), draw(st.integers(1, 3)), 2, 6))
    speeds = {each: draw(st.sampled_from([STOPPED, 25, 50, 75, 100])) for each in job.servers()}
    return job, speeds, draw(st.sets(st.sampled_from(job.servers()), min_size=1))


def measure(job, speeds, asked):
    """What the slowest server takes for a micro-batch where each pipeline that anybody is left of is spread anew."""

    def period_on(used):
        asked.append(used)
        longest = []
        for number, pipeline in enumerate(own_layout(job)):
            places = [each.stage for each in used if each.pipeline == number]
            known = {each.stage: speeds[each] for each in used if each.pipeline == number}
            servers = places and spread(job, with_speeds(pipeline.servers, known), places, pipeline.placement)
            if not servers:
                return math.inf
            longest += [each.time(sum(job.stages[chunk].work for chunk in each.chunks)) for each in servers]
        return max(longest)

    return period_on


@given(fleets())
def test_nobody_is_left_out_without_whom_it_takes_longer_and_nobody_kept_who_only_holds_up(case):
    job, speeds, live = case
    asked = []
    period_on = measure(job, speeds, asked)
    used = servers_of_use(live, speeds, period_on)
    assert all(each <= live for each in asked)
    assert used <= live
    assert period_on(used) <= period_on(live)
    assert all(period_on(used | {each}) > period_on(used) for each in live - used)
    stopped = {each for each in live if speeds[each] == STOPPED}
    if stopped != live and math.isfinite(period_on(live - stopped)):
        assert not used & stopped
    if math.isinf(period_on(live)):
        assert used == live


@given(fleets(), st.data())
def test_however_servers_are_scored_the_quick_ones_stay_and_nothing_gets_longer(case, data):
    _, speeds, live = case
    scores = {}

    def period_on(used):
        return scores.setdefault(used, data.draw(st.integers(1, 5)))

    used = servers_of_use(live, speeds, period_on)
    assert period_on(used) <= period_on(frozenset(live))
    fastest = max(speeds[each] for each in live)
    assert all(speeds[each] < fastest for each in live - used)
