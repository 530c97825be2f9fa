"""Layers that move in a real run, with deaths in the middle of moves: is every parameter what it is without failures?

Usage: python -m benchmarks.moves [--shape 3x4] [--layers 8] [--rounds 20] [--seed 0] [--across]

In each round a server is killed, who leads decides that its layers move, and at a random moment of the move, or right
after it, another server is killed. At the beginning of the next round both join again, and the next one is killed when
all layers are back, or stay where they are. Sums are exact. In the end the run is told to end, the same iterations are
trained with nobody killed, and every parameter and moment is compared; there each pipeline is one server, which changes
no bit and takes two processors less long. Of the pauses in which layers moved it says how long they were, in iterations
of the view before.

Nobody is killed without whom a layer would have no server: the run would end, as it should. With ``--across`` the two
are of the same stage, and servers have memory for no more layers than they begin with: then a
pipeline that lost a server is too short to hold the model, so that servers have to cross pipelines.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import torch

from benchmarks.shared import add_shape, until_interrupted
from harness.forked import TRAINER
from harness.job_files import encode_job
from harness.processes import family, send_signal, title
from harness.started import TRAIN, Started, Views, wait_until
from recycle.control.board.board import Board
from recycle.control.board.joinfile import JOIN_FILE, JoinFile
from recycle.holding import sole_units, with_layout
from recycle.job import Server
from recycle.jobfile import load_job
from recycle.megatron.gpt.checkpointing import shard
from recycle.record.recording import IterationLine, Line, RecoveryLine, ViewLine
from recycle.runtime.checkpoint_folders import checkpoints
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.step.checkpoint import read_stage

ENDLESS = 1_000_000
PATIENCE = 120.0
TOLD = 20_000
"""Characters of the run's output that are shown where it does not go on."""
MODEL = "hidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nclip = 1.0\ndropout = 0.1\n"
DIED = " died: "
MOVES, STAYS = ", which gains", "re-route on"
"""What the run's decisions say. Where deaths have come in quick succession, moving may not pay."""
CROSSES = "; pipeline "
"""What follows in those by which servers change their pipeline."""


def worker_of(server: str, *roots: int) -> int:
    """The process of a server below one of some others."""
    for process in chain.from_iterable(map(family, roots)):
        if title(process).split(" rank")[0] == f"recycle: {server}":
            return process
    raise RuntimeError(f"{server} has no process")


class Rounds:
    """Rounds of deaths and returns.

    Args:
        run: that goes on.
        folder: of it.
        victims: those that may be killed together; two of one such choice are.
        source: of random choices.
    """

    def __init__(self, run: Started, folder: Path, victims: list[list[str]], source: random.Random) -> None:
        self._run = run
        self._folder = folder
        self._views = Views(folder)
        self._home = self._views.newest
        self._victims = victims
        self._source = source
        door = JoinFile.read(folder / JOIN_FILE)
        self._board = Board(Endpoint(door.host, door.port, door.token).connect(), door.token)
        self._dead: list[str] = []
        self._joined: list[Started] = []

    def play(self) -> str:
        """Have those of the last round join, and kill two; says what has happened."""
        if self._dead:
            self._bring_back()
        first, *others = self._source.sample(victims := self._source.choice(self._victims), len(victims))
        self._kill(first)
        wait_until(lambda: self._said_last(MOVES) or self._said_last(STAYS), PATIENCE)
        goes = self._said_last(MOVES)
        time.sleep(self._source.random())
        moved = self._views.newest.moved
        second = next(each for each in others if not self._is_last(each))
        self._kill(second)
        wait_until(self._layout_stands, PATIENCE)
        self._dead = [first, second]
        where = "had moved" if moved else "were on their way" if goes else "stayed"
        return f"{first} died, its layers {where} when {second} died"

    def _said_last(self, decision: str) -> bool:
        """Whether this was decided after the last death."""
        return self._run.output.rfind(decision) > self._run.output.rfind(DIED)

    def _is_last(self, server: str) -> bool:
        """Whether no other live server holds one of its layers."""
        verdict, told = self._board.verdicts.newest(), self._board.description()
        assert told is not None
        job = with_layout(told.job, None if verdict is None else verdict.layout)
        alive = {Server.parse(each) for each in self._views.newest.servers}
        mine = Server.parse(server)
        return bool(sole_units(job, mine, alive - {mine}))

    def _kill(self, server: str) -> None:
        epoch, deaths = self._views.newest.epoch, self._run.output.count(DIED)
        # Who has joined was not started by the run.
        roots = [each.process.pid for each in (self._run, *self._joined) if each.process.poll() is None]
        send_signal(worker_of(server, *roots), signal.SIGKILL)
        wait_until(lambda: (view := self._views.newest).epoch > epoch and server not in view.servers, PATIENCE)
        wait_until(lambda: self._run.output.count(DIED) > deaths, PATIENCE)

    def _layout_stands(self) -> bool:
        """Whether layers have moved after the second death, or are left where they are."""
        return self._views.newest.moved or self._said_last(STAYS)

    def _bring_back(self) -> None:
        said = len(self._run.output)
        words = [*TRAIN, "join", str(self._folder), "--server"]
        joining = [(each, Started([*words, each], imported=TRAINER)) for each in self._dead]
        self._joined += [process for _, process in joining]
        for server, process in joining:
            wait_until(partial(self._lives_or_ended, server, process), PATIENCE)
            assert self._lives(server), process.output
        wait_until(lambda: self._is_home or STAYS in self._run.output[said:], PATIENCE)

    @property
    def _is_home(self) -> bool:
        """Whether all servers compute what they did at the beginning."""
        view = self._views.newest
        return (view.servers, view.period) == (self._home.servers, self._home.period)

    def _lives_or_ended(self, server: str, joining: Started) -> bool:
        return self._lives(server) or joining.process.poll() is not None

    def _lives(self, server: str) -> bool:
        return server in self._views.newest.servers

    def end(self) -> None:
        """End those that have joined, if the run has not."""
        for each in self._joined:
            each.kill()


def pauses(folder: Path) -> list[tuple[float, float]]:
    """Of each view that began with moved layers, the milliseconds of its pause and of an iteration before it."""
    views: dict[int, ViewLine] = {}
    lengths: dict[int, list[float]] = defaultdict(list)
    seconds: dict[int, list[float]] = defaultdict(list)
    for path in (folder / "events").glob("*.jsonl"):
        for text in path.read_bytes().rpartition(b"\n")[0].splitlines():
            match msgspec.json.decode(text, type=Line):
                case ViewLine() as line:
                    views[line.epoch] = line
                case RecoveryLine() as line:
                    lengths[line.epoch].append((line.resumed - line.noticed) / 1000)
                case IterationLine() as line:
                    seconds[line.epoch].append(line.seconds)
    moved = [epoch for epoch, view in views.items() if view.moved and not view.joined and lengths[epoch]]
    before = {epoch: max((each for each in seconds if each < epoch), default=None) for epoch in moved}
    return [
        (max(lengths[epoch]), 1000 * statistics.median(seconds[last]))
        for epoch, last in sorted(before.items())
        if last is not None
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--across", action="store_true")
    add_shape(parser)
    arguments = parser.parse_args()
    pipelines, stages = arguments.shape
    peers = [[f"W{pipeline}_{stage}" for pipeline in range(pipelines)] for stage in range(stages)]
    victims = peers if arguments.across else [sorted(chain.from_iterable(peers))]
    held = arguments.layers // stages
    limit = held if arguments.across else 4 * arguments.layers
    print(f"{pipelines} x {stages} servers, {arguments.layers} layers, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder, undisturbed = Path(temporary) / "run", Path(temporary) / "undisturbed"
        model = Path(temporary) / "model.toml"
        model.write_text(f"layers = {arguments.layers}\nexact = true\n{MODEL}")
        cut, whole = Path(temporary) / "cut.toml", Path(temporary) / "whole.toml"
        shared = {"pipelines": pipelines, "micro_batches": 4, "optimizer": 1}
        for job, count, chunks, room in (
            (cut, stages, held, limit),
            (whole, 1, arguments.layers, 4 * arguments.layers),
        ):
            keys = {**shared, "stages": count, "placement": f"consecutive:{chunks}", "limit": room}
            job.write_bytes(encode_job(load_job(None, keys)))
        words = [*TRAIN, "train", "--model", str(model)]
        words += ["--timeouts", "silence=9s,hang=60s"]
        moving = ("--move-layers", "on", "--restarts", "0", "--iterations", str(ENDLESS), "-o", str(folder))
        run = Started([*words, str(cut), *moving], imported=TRAINER)
        made = 0
        rounds: Rounds | None = None
        try:
            run.wait_for("iteration 2/")
            rounds = Rounds(run, folder, victims, random.Random(arguments.seed))
            with until_interrupted():
                for number in range(arguments.rounds):
                    said = rounds.play()
                    made += 1
                    print(f"{number + 1} of {arguments.rounds}: {said}", file=sys.stderr, flush=True)
            run.process.send_signal(signal.SIGTERM)
            status = run.ended(PATIENCE)
        except (AssertionError, StopIteration, subprocess.TimeoutExpired):
            print(run.output[-TOLD:], file=sys.stderr)
            raise
        finally:
            run.kill()
            if rounds is not None:
                rounds.end()
        stood = pauses(folder)
        (*_, last) = checkpoints(folder / "checkpoints")
        step = int(last.name.removeprefix("step-"))
        alone = ("--restarts", "0", "--iterations", str(step), "-o", str(undisturbed))
        again = Started([*words, str(whole), *alone], imported=TRAINER)
        try:
            assert again.ended(3600) == 0, again.output
        finally:
            again.kill()
        (*_, other) = checkpoints(undisturbed / "checkpoints")
        states = [[read_stage(each, shard(chunk, 0)) for chunk in range(arguments.layers)] for each in (last, other)]
    same = all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(*states, strict=True)
    )
    ratios = [pause / iteration for pause, iteration in stood]
    print(f"{made} rounds, {len(stood)} moves in {step} iterations; status {status}")
    crossing = sum(MOVES in line and CROSSES in line for line in run.output.splitlines())
    print(f"decided to move across pipelines: {crossing} times")
    if ratios:
        worst = max(pause for pause, _ in stood)
        middle = statistics.median(ratios)
        print(f"pauses of {middle:.1f} iterations in the median, {max(ratios):.1f} at worst, {worst:.0f} ms")
    print(f"every parameter and moment is equal to the bit: {same}; load {os.getloadavg()[0]:.1f}")
    return int(not same or status != 128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
