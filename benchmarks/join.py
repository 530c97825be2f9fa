"""How long training stands still when a server joins: its state copied before the pause, or in it.

Usage: python -m benchmarks.join [--hidden 512] [--layers 8] [--iterations 1000]

Two pipelines of two stages train a GPT; one server is killed and joins again, and then the run is told to end. The time
is counted on the servers that were there, from the boundary at which they stop to the first instruction after it; the
longest of them counts.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from recycle.cli.model import quiet
from recycle.errors import EndedBySignal
from recycle.faults.menu import Fault, Faults, Kind
from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.recording import Line, RecoveryLine, ViewLine

LOST, OTHERS = Server(1, 0), 3
MILLISECONDS = 1 / 1000.0
PHASES = ("agree", "rebuild", "restore", "start")


def pause(hidden: int, layers: int, iterations: int, following: bool) -> tuple[float, ...]:
    """Milliseconds of each phase of the pause in which a server is let in; the whole of it comes last."""
    from recycle.megatron.gpt.model import ModelOptions
    from recycle.megatron.gpt.run import Run
    from recycle.megatron.gpt.training import train
    from recycle.planner.source import plan_maker
    from recycle.runtime.join.following import Joining

    if not following:
        # As if nobody could serve it: the way that is left when all else fails.
        Joining._has_peer = lambda *_: False  # type: ignore[method-assign]  # noqa: SLF001
    stage = Stage(2, 2, 1, 1, 0, 1, 0, 4)
    job = Job(2, 2, (stage, stage), (0,))
    plan = make_plan(job, (), Mode(), Effort((MaxMoves(500),), "500 moves"))
    model = ModelOptions(layers=layers, hidden=hidden, heads=8, sequence=32, micro_batch_size=1)
    faults = Faults((Fault(Kind.KILL, (LOST,), step=1), Fault(Kind.JOIN, (LOST,), step=2)))
    recoveries: dict[int, list[RecoveryLine]] = {}
    joined: list[int] = []
    told: list[int] = []

    def watch(line: Line) -> None:
        if isinstance(line, RecoveryLine) and line.server != str(LOST):
            recoveries.setdefault(line.epoch, []).append(line)
        if isinstance(line, ViewLine) and line.joined:
            joined.append(line.epoch)
        if joined and not told and len(recoveries.get(joined[0], ())) == OTHERS:
            told.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        run = Run(plan, model, iterations, Path(folder) / "run")
        with contextlib.suppress(EndedBySignal):
            train(run, watch, plan_maker(job, plan.mode), faults)
    assert joined, f"nobody was let in within {iterations} iterations; take more"
    slowest = max(recoveries[joined[0]], key=lambda line: line.resumed - line.noticed)
    times = (slowest.noticed, slowest.agreed, slowest.rebuilt, slowest.restored, slowest.resumed)
    phases = [later - earlier for earlier, later in pairwise(times)]
    return tuple(each * MILLISECONDS for each in (*phases, sum(phases)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=1000, help="after which nobody is waited for any longer")
    arguments = parser.parse_args()
    quiet()
    print(
        f"2 x 2 servers, {arguments.layers} layers of {arguments.hidden}, load {os.getloadavg()[0]:.1f}; milliseconds"
    )
    print(f"{'':<24}" + "".join(f"{name:>9}" for name in (*PHASES, "in all")))
    for following, name in ((True, "copied before the pause"), (False, "copied in the pause")):
        times = pause(arguments.hidden, arguments.layers, arguments.iterations, following)
        print(f"{name:<24}" + "".join(f"{each:9.1f}" for each in times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
