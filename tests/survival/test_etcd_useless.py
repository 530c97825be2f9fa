"""Runs whose etcd answers and does not do its work: it is full, or has lost its data."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.etcd import Etcd, etcd, missing
from harness.processes import send_signal
from harness.started import TRAIN, losses, newest_view, small_run, wait_until

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(600)]

QUOTA = 1 << 24


class Trouble(NamedTuple):
    """What becomes of etcd.

    Attributes:
        begin: has it come.
        said: of its cause.
        end: does what is said.
    """

    begin: Callable[[Etcd], None]
    said: str
    end: Callable[[Etcd], None]


FULL = "a member is full, so it takes no writes; run etcdctl compact"
TROUBLES = {
    "full": Trouble(Etcd.fill, FULL, Etcd.make_room),
    # All that is needed is written again.
    "empty": Trouble(lambda served: served.members[0].start_anew(), "etcd came back without its data", lambda _: None),
}


def iterations(folder: Path) -> int:
    """How many all servers together have made."""
    return sum(each.read_bytes().count(b'"type":"iteration"') for each in folder.glob("events/*.jsonl"))


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_run_finds_out_before_it_needs_etcd_and_survives_deaths_again_afterwards(tmp_path, start, trouble):
    folder = tmp_path / "run"
    with etcd(quotas=[QUOTA]) as served:
        run = start([*TRAIN, *small_run(folder, 2, 1, 100_000, "--store", served.url)])
        run.wait_for("iteration 5/")
        trouble.begin(served)
        run.wait_for("no failure can be survived until it is back")
        assert trouble.said in run.output
        # Training goes on, and there is a checkpoint where none was asked for.
        wait_until(lambda: list(folder.glob("checkpoints/step-*")))
        recordings = [folder / "events" / f"W{pipeline}_0.jsonl" for pipeline in range(2)]
        wait_until(lambda: all(b"the store is lost" in each.read_bytes() for each in recordings))
        made = iterations(folder)
        wait_until(lambda: iterations(folder) > made + 2)
        trouble.end(served)
        wait_until(lambda: all(b"the store is back" in each.read_bytes() for each in recordings))

        send_signal(run.processes(r"^recycle: W1_0$")[0], signal.SIGKILL)
        # It is missed, and comes back in another life.
        wait_until(lambda: newest_view(folder).epoch >= 2 and len(newest_view(folder).servers) == 2)
        made = iterations(folder)
        wait_until(lambda: iterations(folder) > made + 2)
        send_signal(run.process.pid, signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM, run.output
        steps = list(losses(folder))
        assert steps == list(range(len(steps)))
