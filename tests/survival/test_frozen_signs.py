"""A stranger at the store of several hosts, which undoes each sign of life that a host gives there."""

import re
import subprocess
import sys
import time

import pytest

from harness.hosts import hosts, missing
from harness.started import TRAIN, by_hand, small_run
from recycle.control.membership.durations import Durations

WHY_NOT = missing()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(400)]


DURATIONS = Durations()
ANSWERS = "The host answers directly, and counts as alive"


@pytest.fixture
def three():
    with hosts(3) as found:
        yield found


def test_a_host_whose_signs_are_undone_is_not_dead_and_its_death_is_noticed_as_soon_as_without(three, start, tmp_path):
    words = [*TRAIN, *small_run(tmp_path / "run", 2, 1, 200_000)]
    ranks = [start(words, host, by_hand(rank, 2, "host1", 29500)) for rank, host in enumerate(three[:2])]
    ranks[0].wait_for("iteration 5/")
    freezer = start([sys.executable, "-m", "harness.scripts.freezer", "host1", "29500"], three[2])
    freezer.wait_for("2 hosts are frozen")
    for rank in ranks:
        rank.wait_for(ANSWERS, 10 * DURATIONS.silence)
    time.sleep(3 * DURATIONS.silence)
    said = ranks[0].output + ranks[1].output
    assert "died" not in said, said
    assert said.count(ANSWERS) == 2, said
    three[1].crash()
    ranks[0].wait_for("W1_0 died: has given no sign of life for ")
    # Else it would first have to answer an alarm, which takes as long.
    seconds = re.search(r"W1_0 died: has given no sign of life for (\S+) s", ranks[0].output)[1]
    assert float(seconds) < DURATIONS.answer
    ranks[0].wait_for(": 1 of 2 servers")
    subprocess.run(three[0].command("pkill", "-TERM", "-f", "harness.scripts.train"), check=True)
    assert ranks[0].ended() == 128 + 15, ranks[0].output
