"""How often a server is started again."""

import pytest

from recycle.control.host.agent import DONE, FENCED, LEFT, STOPPED
from recycle.job import Server
from recycle.runtime.launch.process.restarts import HOUR, Restarts, has_crashed

ONE, OTHER = Server(0, 1), Server(1, 1)


def test_a_server_may_crash_so_often_within_any_hour():
    restarts = Restarts(2)
    assert [restarts.allow(ONE, time) for time in (0.0, HOUR / 2, HOUR - 1)] == [True, True, False]
    assert restarts.allow(OTHER, HOUR - 1)
    # The first one is forgotten, and what was refused never counted.
    assert [restarts.allow(ONE, time) for time in (HOUR, HOUR + 1)] == [True, False]
    assert restarts.refusal(ONE).startswith("W0_1 has crashed more than 2 times within an hour")


def test_who_wants_none_gets_none_and_hears_nothing_of_it():
    restarts = Restarts(0)
    assert not restarts.allow(ONE, 0.0)
    assert restarts.refusal(ONE) == ""


def test_whoever_the_run_needs_comes_back_as_long_as_the_run_gets_on():
    restarts = Restarts(0)
    assert all(restarts.insist(ONE, step) for step in range(20))
    assert restarts.insist(OTHER, 19)
    assert [restarts.insist(ONE, 19) for _ in range(4)] == [True, True, False, False]
    assert restarts.insist(ONE, 20)


@pytest.mark.parametrize("status", [DONE, FENCED, LEFT, STOPPED])
def test_an_end_that_was_meant_is_no_crash(status):
    assert not has_crashed(status)


@pytest.mark.parametrize("status", [-9, -11, 1, 2])
def test_any_other_end_is_one(status):
    assert has_crashed(status)
