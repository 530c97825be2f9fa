import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.errors import UserError
from recycle.placing.decision import OF_A_CLUSTER, Move, Outlook, decide

MOVE = Move(now=10.0, then=8.0, copied=6 * 10**9, busiest=3 * 10**9, bandwidth=1e9, pause=2.0)


def iterations(move, until, moves):
    """How many are made until then, step by step."""
    if not moves:
        return until / move.now
    copying, rest = min(until, move.copying), max(0.0, until - move.copying)
    return copying / move.now + max(0.0, rest - move.pause) / move.then


times = st.floats(0.1, 100)


@given(times, times, st.integers(0, 10**11), times, st.floats(0, 50), st.floats(1, 10**5))
def test_it_moves_where_more_iterations_are_made_that_way(now, then, busiest, gigabytes, pause, until):
    move = Move(now, then, 2 * busiest, busiest, gigabytes * 1e9, pause)
    decision = decide(move, until)
    gain = iterations(move, until, True) - iterations(move, until, False)
    if until > move.copying + pause:
        assert decision.moves == (then < now and gain > 1e-9) or abs(gain) <= 1e-9
        if then < now:
            assert decision.gained == pytest.approx(gain, abs=1e-6)
    else:
        assert not decision.moves


def test_the_line_has_the_numbers():
    # (1000 - 3) / 8 - (1000 - 3) / 10 - 2 / 8 = 24.675
    assert decide(MOVE, 1000.0).line == (
        "move layers, which gains 24.67 iterations: 8 s instead of 10 s an iteration; 5.588 GiB to copy, 2.794 GiB "
        "of it to one server (3 s while training goes on), 2 s of standing still; "
        "servers expected to change in 16 min 40 s"
    )
    assert decide(MOVE, 12.0).line.startswith("re-route on, moving loses 0.025 iterations: ")
    # Where layers stay where they are, micro-batches alone move.
    assert decide(Move(10.0, 8.0, 0, 0, 1e9, 2.0), 1000.0).line == (
        "share out micro-batches anew, which gains 24.75 iterations: 8 s instead of 10 s an iteration; "
        "2 s of standing still; servers expected to change in 16 min 40 s"
    )
    assert "no change of servers expected" in decide(MOVE, math.inf).line


def test_no_gain_is_said():
    slower = Move(8.0, 10.0, 1, 1, 1.0, 0.0)
    assert decide(slower, math.inf).line == "re-route on: no placement is faster (10 s instead of 8 s an iteration)"


def test_failures_and_repairs_compete_for_the_next_change():
    outlook = Outlook(between_failures=1000.0, to_repair=50.0)
    assert outlook.until_change(10, 0) == pytest.approx(100)
    assert outlook.until_change(10, 2) == pytest.approx(20)
    assert Outlook(1000.0).until_change(10, 5) == pytest.approx(100)
    assert Outlook(math.inf).until_change(10, 0) == math.inf


def test_an_outlook_is_a_clusters_or_two_means_or_none():
    assert Outlook.parse("on") == OF_A_CLUSTER
    assert Outlook.parse("off") is None
    assert Outlook.parse("2h/30m") == Outlook(7200.0, 1800.0)
    for wrong in ("2h", "2h/0s", "2h/1h/1h", "often"):
        with pytest.raises(UserError):
            Outlook.parse(wrong)
