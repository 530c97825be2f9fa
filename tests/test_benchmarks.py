"""Every command of benchmarks/README: run at a small size, to its end and with its figures, or parsed.

No figure is judged here, for they are of a clock. What fails is a benchmark that what it measures has left behind: one
that calls what is there no more, waits for what does not come, or ends without the figure that its row names.
"""

import os
import re
from typing import NamedTuple

import pytest

from harness import browser, etcd
from harness.documents import COMMANDS
from harness.flag_runs import missing as missing_training
from harness.forked import Forked
from harness.paths import ROOT, python_path

BUSY = "run it again when less else is running"
"""What benchmarks say that give no figures on a machine like this."""


class Small(NamedTuple):
    """How a command becomes small.

    Attributes:
        words: that are added.
        figures: a line that it then prints.
        why_not: why it cannot be run here; empty if it can.
        timed: whether its exit status judges a time, which no test does.
    """

    words: str
    figures: str
    why_not: str = ""
    timed: bool = False


CORES = "" if len(os.sched_getaffinity(0)) > 1 else "this takes a core for each of two servers"
TRAINING = f"{', '.join(missing_training)} are not installed" if missing_training else ""
FEW_TURNS = "--starts 1 --pairs 2 --seconds 0.1"

SMALL = {
    "planner table": Small("--budget 0.02 --proof 0.05", r"staggered +W1_2 +6 +W +30 +\d+ "),
    "planner small": Small("--cases 2 --budget 0.1 --proof 1", r"\d of 2 proved; of these \d equal the optimum"),
    "planner large": Small("--shape 8x4x4 --budget 0.01", r"4 +10:12:7 +1 +8 .* True"),
    "planner lookup": Small("--shape 4x2x2 --budget 0.01", r"one server's program: median [\d.]+ ms; all 7: "),
    "planner pays": Small("--stages 2 --pipelines 2 --micro-batches 2 --moves 10", r"\| 2 \| \d+% \| 50% \|"),
    "fuzz": Small("--jobs 12 --proofs 2 --moves 20", r"bound above optimum: 0"),
    "fleets": Small("", r"64 servers x 96 layers: \d+ templates"),
    "fleets failures": Small("--micro-batches 6", r"6  7  4  \d+  \d+  \d+  [\d.]+ \([\d.]+\)  \d+ GB"),
    "fleets trace --trace FILE": Small("--micro-batches 6 --seeds 1", r"6  [\d.]+  [\d.]+  [\d.]+  \d+  \d+"),
    "show": Small("--shape 8x4x4", r"search for W7_3: [\d.]+ ms", browser.missing()),
    "emulated placements": Small(
        "--placement dead-moved --micro-batches 4 --slot-ms 2 --iterations 2",
        r"dead-moved +period +\d+ +[\d.]+ ",
        timed=True,
    ),
    "emulated stagger": Small("--iterations 2 --slot-ms 5", r"staggered, nothing clips +30 .* 0 +0 ", timed=True),
    "dropin": Small(FEW_TURNS, r"clock .* median ratio", TRAINING, timed=True),
    "dropin --tensor-parallel 2": Small(FEW_TURNS, r"PP 2 x DP 2, 2 ranks a server, .* pairs", TRAINING, timed=True),
    "dropin --experts": Small(FEW_TURNS, r"PP 2 x DP 2, 2 ranks a server, .* pairs", TRAINING, timed=True),
    "costs protection": Small(f"{FEW_TURNS} --sequence 16 --shape 2x1", r"by the clock [\d.]+, with 95%", timed=True),
    "costs copies": Small(
        f"--copies 2 {FEW_TURNS} --sequence 16 --shape 2x1", r"by the clock [\d.]+, with 95%", timed=True
    ),
    "costs watching": Small(
        "--starts 1 --rounds 2 --seconds 0.1 --shape 2x1", r"watched over unwatched [\d.]+, with 95%", timed=True
    ),
    "costs exact": Small(
        "--pairs 1 --hidden 32 --sequence 16 --micro-batch-size 1", r"processor +plain +[\d.]+ ms, exact", timed=True
    ),
    "recovery real": Small("--kills 1 --shape 2x1", r"1 kills of 1 survived", timed=True),
    "recovery accounts": Small(
        "--runs 1 --kills 1 --iterations 12 --slot-ms 5", r"1 runs: failures cost .* are printed", timed=True
    ),
    "recovery emulated": Small("--shapes 2x2 --kills 1", r"load .*; 0 kills were not survived"),
    "store membership --members 256 1024 4096": Small(
        "--members 16 --processes 1", r" +16 \| +\d+ ms \| .* s +\| \d+ \(\d+\)"
    ),
    "store membership --store etcd": Small(
        "--members 16 --processes 1", r" +\| through 1 relays: \d+ requests", etcd.missing()
    ),
    "store steady": Small("--members 16 --beats 1", r" +16 \| +[\d.]+ \| [\d.]+"),
    "moves": Small("--rounds 1 --shape 3x2 --layers 4", r"every parameter and moment is equal to the bit: True"),
    "flag_random": Small("--seed 75 --runs 1", r"seed 75: 0 of 1 runs failed", TRAINING),
    "hostile": Small("--moments 1 --seed 1 --kind folder", r"seed 1: 0 of 1 moments failed"),
    "stand_in threads": Small("--deaths 4", r"\| one \| 2 \| .* \| 0 \| "),
    "stand_in library": Small("--kills 4", r"\| one \| 2 \| .* \| 0 \| "),
    "study fidelity -o docs/images/fidelity.svg": Small(
        "--kills 1 --apart 2 -M 2 -o fidelity.svg",
        r"emulated +[\d.]+ iterations/s with \d+ outages in .* simulated",
        CORES,
    ),
    "reproduce": Small("", r"Oobleck, Table 2 \(samples/s\): Oobleck, GPT-3 6.7B, 10m .* yes"),
    "example_scripts TREE": Small("", r"1 jobs read, 1 run and 1 survive; "),
}

PARSED = {
    "hosts lost": "three hosts of 12 processes: tests/survival/test_hosts.py loses one",
    "hosts slurm": "it takes Slurm on three nodes",
    "strangers strikes": "two runs with kills and returns: tests/survival/test_strangers.py strikes at some as well",
    "strangers floods": "eight kills: tests/survival/test_doors.py floods each kind of door as well",
    "strangers hosts": "seven runs on hosts: tests/survival/test_hosts.py has one of the attacks",
}
"""Those that take what is not here, and what tests the same."""

EXAMPLE = (
    'SIZE=(\n  --micro-batch-size 1\n  --global-batch-size $1\n)\ncheckpoints=$(basename "$2")\n'
    "torchrun --nproc_per_node 2 pretrain_gpt.py ${SIZE[@]} --save $checkpoints --save-interval 9\n"
)


def shown():
    """What the documents have behind ``python -m benchmarks.``."""
    lines = {" ".join(each.words) for each in COMMANDS}
    start = "python -m benchmarks."
    return sorted(each.removeprefix(start) for each in lines if each.startswith(start))


def call(folder, module, *words):
    """Run a benchmark to its end; gives its status and what it said."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    with Forked(["-m", f"benchmarks.{module}", *words], variables, folder) as benchmark:
        said = benchmark.stdout.read()
    return benchmark.returncode, said


@pytest.fixture
def folder(tmp_path):
    """What the commands read, by the names that the documents give it."""
    (tmp_path / "schedules").symlink_to(ROOT / "schedules")
    (tmp_path / "FILE").write_text("hours,live\n0,24\n1,23\n1.5,22\n3,24\n4,24\n")
    (tmp_path / "TREE" / "examples").mkdir(parents=True)
    (tmp_path / "TREE" / "examples" / "train.sh").write_text(EXAMPLE)
    return tmp_path


def test_every_command_of_the_documents_is_here_and_every_benchmark_has_one():
    assert shown() == sorted([*SMALL, *PARSED])
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert {each.split()[0] for each in shown()} == programs


@pytest.mark.long
@pytest.mark.parametrize("command", SMALL)
def test_it_comes_to_its_end_with_its_figures(command, folder):
    small = SMALL[command]
    if small.why_not:
        pytest.skip(small.why_not)
    status, said = call(folder, *command.split(), *small.words.split())
    assert "Traceback" not in said, said
    if BUSY not in said:
        # A figure may be missed on a busy machine.
        assert status == 0 or (small.timed and status == 1), said
        assert re.search(f"^{small.figures}", said, re.MULTILINE), said


@pytest.mark.skipif(not TRAINING, reason="Megatron's training code is here")
def test_what_is_not_installed_is_named(folder):
    status, said = call(folder, "dropin")
    assert status == 2
    assert "megatron.training" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", PARSED)
def test_what_takes_more_than_is_here_says_what_it_measures(command, folder):
    status, said = call(folder, *command.split(), "--help")
    assert status == 0
    assert "usage: " in said


def test_each_row_has_five_short_cells():
    rows = [line for line in (ROOT / "benchmarks" / "README.md").read_text().splitlines() if "python -m" in line]
    cells = [line.strip("| ").split(" | ") for line in rows]
    assert {len(row) for row in cells} == {5}
    assert max(len(cell.split()) for row in cells for cell in row) <= 40
