"""Kills of single ranks of tensor-parallel servers, from outside and at any moment: TP 2 x PP 2 x DP 3, 12 processes.

Usage: python -m benchmarks.ranks [--kills 20] [--seed 0] [--ranks 2] [--pipelines 3] [--distributed-optimizer]
                                  [--exact | --flag [--overlap]]

Every kill meets a whole view: a server that has lost a rank is started again with both. The losses are compared with
those of a run that nobody disturbs: within 1e-5 of them, or with --exact to the bit, as are parameters and moments at
the end. With --distributed-optimizer servers hold shards of the moments, and those of the undisturbed run hold all.
With --ranks 1 servers are single processes. With --flag it is Megatron's script under the flag, against stock Megatron
without tensor parallelism, and with --distributed-optimizer both have Megatron's, with --overlap with its overlapped
sums and parameters; that needs Megatron's training code.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from harness.examples import paper_job
from harness.processes import family, send_signal, title
from recycle.cli.model import quiet
from recycle.control.membership.view import ServerRank
from recycle.errors import EndedBySignal
from recycle.plan.mode import Mode
from recycle.record.recording import DeathLine, IterationLine, ViewLine
from recycle.record.reporting import Event

STAGES, PIPELINES, RANKS = 2, 3, 2
FIRST, APART = 3, 8
"""Iterations before the first kill, and from one to the next, if the view is whole by then."""

FLAG_APART = 25
"""The same under the flag, where an iteration takes three seconds as long as a server is away."""

ALLOWED = 1e-5


class Told:
    """Says of each kill how long all have not been there.

    Args:
        kills: how many there will be.
    """

    def __init__(self, kills: int) -> None:
        self._kills = kills
        self._victim = ""
        self._since = 0.0

    def lost(self, victim: str) -> None:
        """Somebody was killed."""
        self._victim, self._since = victim, time.monotonic()

    def back(self, kills: int) -> None:
        """All are there, after so many kills."""
        if self._victim:
            seconds = time.monotonic() - self._since
            print(f"{kills} of {self._kills}: whole {seconds:.1f} s after the kill of {self._victim}", file=sys.stderr)
            self._victim = ""


class Killer:
    """Kills a rank of a server whenever the view is whole and the last kill is long enough ago.

    Args:
        kills: how many.
        seed: of the choice of victims and moments.
        servers: of the whole view.
        ranks: of each server.

    Attributes:
        killed: the titles of the victims.
        deaths: what became of their servers, by server and incarnation.
        losses: of each iteration.
    """

    def __init__(self, kills: int, seed: int, servers: int, ranks: int) -> None:
        self.killed: list[str] = []
        self.deaths: dict[tuple[str, int], str] = {}
        self.losses: dict[int, list[float]] = {}
        self._kills = kills
        self._servers = servers
        self._ranks = ranks
        self._source = random.Random(seed)
        self._view: ViewLine | None = None
        self._next = FIRST
        self._told = Told(kills)

    def watch(self, event: Event) -> None:
        """Take note of what happens in the run, and kill."""
        if isinstance(event, ViewLine):
            self._view = event
            self._next = max(self._next, event.step + FIRST)
            if len(event.servers) == self._servers:
                self._told.back(len(self.killed))
        elif isinstance(event, DeathLine):
            self.deaths[event.server, event.incarnation] = event.reason
        elif isinstance(event, IterationLine):
            if event.losses:
                self.losses[event.step] = event.losses
            if event.step >= self._next:
                self._kill(event.step)

    def _kill(self, step: int) -> None:
        view = self._view
        if len(self.killed) == self._kills or view is None or len(view.servers) < self._servers:
            return
        victim = ServerRank(self._source.randrange(self._ranks), self._ranks).of(self._source.choice(view.servers))
        pid = find_own(victim)
        if pid is not None:
            send_signal(pid, signal.SIGKILL)
            self.killed.append(victim)
            self._next = step + APART
            self._told.lost(victim)


def find_own(wanted: str) -> int | None:
    """The worker with a title among the processes below this one."""
    return next((pid for pid in family(os.getpid()) if title(pid) == f"recycle: {wanted}"), None)


def kill_under_flag(kills: int, seed: int, pipelines: int, ranks: int, optimizer: Sequence[str]) -> int:
    """The same under the flag on a Megatron script; gives the exit status.

    Args:
        kills: how many.
        seed: of the choice of victims.
        pipelines: of the job.
        ranks: of each server.
        optimizer: the options that say how it is cut.
    """
    from harness.flag_runs import kill_in_turn, make_dataset, train

    servers = pipelines * STAGES
    source, total = random.Random(seed), servers * ranks
    victims = [source.randrange(total) for _ in range(kills)]
    batch = 4 * pipelines
    size: tuple[object, ...] = ("--global-batch-size", batch, "--lr", 2e-3, "--eval-interval", 1000, *optimizer)
    iterations = FIRST + FLAG_APART * kills
    with tempfile.TemporaryDirectory() as temporary:
        dataset, slow = make_dataset(Path(temporary) / "text"), Path(temporary) / "slow"
        os.environ["PACE"] = str(slow)
        survives = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", kills)
        broken = train(
            dataset,
            *(*size, "--tensor-model-parallel-size", ranks, *survives),
            ranks=total,
            iterations=iterations,
            script="paced_gpt.py",
            watch=kill_in_turn(victims, slow, say=partial(print, file=sys.stderr, flush=True)),
        )
        print("a run of stock Megatron, to compare", file=sys.stderr, flush=True)
        whole = train(dataset, *size, ranks=servers, iterations=iterations)
    deaths = broken.output.count("was killed by signal 9 (SIGKILL); training goes on")
    back = broken.output.count(f"training goes on with {servers} servers")
    losses = [(float(whole.trained[each][0]), float(broken.trained[each][0])) for each in whole.trained]
    worst = max(abs(one - other) / one for one, other in losses)
    print(
        f"{deaths} of {kills} kills survived under the flag, {back} servers back; {len(losses)} losses within "
        f"{worst:.1e} of stock Megatron's; load {os.getloadavg()[0]:.1f}"
    )
    return int(not kills == deaths == back or worst > ALLOWED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--pipelines", type=int, default=PIPELINES)
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--flag", action="store_true", help="a Megatron script under the flag")
    parser.add_argument("--overlap", action="store_true", help="under the flag, with the distributed optimizer")
    arguments = parser.parse_args()
    kills, seed, ranks, pipelines = arguments.kills, arguments.seed, arguments.ranks, arguments.pipelines
    if arguments.flag:
        sharded = ["--use-distributed-optimizer"] if arguments.distributed_optimizer else []
        overlap = ["--overlap-grad-reduce", "--overlap-param-gather"] if arguments.overlap else []
        return kill_under_flag(kills, seed, pipelines, ranks, [*sharded, *overlap])
    quiet()
    import torch

    from recycle.control.membership.durations import Durations
    from recycle.faults.menu import Faults
    from recycle.megatron.gpt.model import ModelOptions
    from recycle.megatron.gpt.recut import shard
    from recycle.megatron.gpt.run import Run
    from recycle.megatron.gpt.training import train
    from recycle.planner.source import plan_maker
    from recycle.runtime.step.checkpoint import folder_of, read_stage

    job = paper_job(pipelines=pipelines, stages=STAGES, micro_batches=2, released=0)
    make = plan_maker(job, Mode())
    model = ModelOptions(2, 32, 2, 16, micro_batch_size=2, tied=True, dropout=0.1, clip=0.5, exact=arguments.exact)
    durations = Durations(beat=1.0, silence=10.0)
    losses: list[dict[int, list[float]]] = []
    states: list[dict[tuple[str, str], torch.Tensor]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for kills in (0, arguments.kills):
            killer = Killer(kills, seed, pipelines * STAGES, ranks)
            folder = Path(temporary) / str(kills)
            # A server takes some iterations to come back.
            steps = FIRST + 2 * APART * arguments.kills
            run = Run(make(()), model, steps, folder, tensor_parallel=ranks, durations=durations, restarts=1000)
            run = msgspec.structs.replace(run, distributed=arguments.distributed_optimizer and kills > 0)
            try:
                train(run, killer.watch, make, Faults(()))
            except EndedBySignal:
                if not kills:
                    raise
                print("interrupted: what follows is of what was done until then", file=sys.stderr)
            losses.append(killer.losses)
            end = folder_of(run.checkpoints, steps)
            if not end.exists():
                states.append({})
                continue
            parts = [shard(stage, rank) for stage in range(STAGES) for rank in range(ranks)]
            states.append({(part, name): each for part in parts for name, each in read_stage(end, part).items()})
    whole, broken = losses
    for killed, reason in zip(killer.killed, killer.deaths.values(), strict=False):
        print(f"{killed}: its server {reason}")
    is_whole = bool(states[1])
    steps_made = [step for step in whole if is_whole or step in broken]
    same = sum(whole[step] == broken.get(step) for step in steps_made)
    pairs = [pair for step in steps_made for pair in zip(whole[step], broken[step], strict=True)]
    worst = max((abs(a - b) / a for a, b in pairs), default=0.0)
    compared = list(states[0]) if is_whole else []
    unequal = [name for name in compared if not torch.equal(states[0][name], states[1][name])]
    print(
        f"{len(killer.killed)} of {arguments.kills} kills, {len(killer.deaths)} servers dead and the run kept; of "
        f"{len(steps_made)} iterations {same} have equal losses to the bit, the others are within {worst:.1e}; "
        f"{len(unequal)} of {len(compared)} parameters and moments differ in a bit at the end; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    kept = worst <= (0.0 if arguments.exact else ALLOWED) and not (arguments.exact and unequal)
    return int(not kept or not is_whole or not arguments.kills == len(killer.killed) == len(killer.deaths))


if __name__ == "__main__":
    sys.exit(main())
