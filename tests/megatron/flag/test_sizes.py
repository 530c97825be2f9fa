"""What does not fit is what Megatron refuses, over random command lines."""

import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from harness.flag_runs import needs_training
from harness.paths import python_path
from recycle.errors import UserError
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.megatron.flag.command.on_cpu import settings_for_cpu
from recycle.megatron.flag.command.sizes import unfit

COUNT = 40
"""Command lines of each kind. Where one fits, a model is built, which takes the most time."""

FITTING = {
    "--num-layers": 4,
    "--hidden-size": 16,
    "--num-attention-heads": 4,
    "--seq-length": 8,
    "--max-position-embeddings": 8,
    "--micro-batch-size": 1,
    "--lr": 0.001,
    "--train-iters": 10,
    "--vocab-size": 255,
    "--tokenizer-type": "NullTokenizer",
}
SWITCHES = ("--mock-data", "--disable-bias-linear", *settings_for_cpu([]))
RANKS = (8, 12, 12)

PIPELINES = {"--pipeline-model-parallel-size": (1, 2, 3, 4), "--no-overlap-p2p-communication": (None, None, "")}
LAYERS = PIPELINES | {"--num-layers": (2, 4, 5, 6, 8, 12)}
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
ENDS = {FIRST: (None, 1, 2, 4), LAST: (None, 1, 2, 4)}
COUNTED = {"--account-for-embedding-in-pipeline-split": (None, ""), "--account-for-loss-in-pipeline-split": (None, "")}
VIRTUAL = {
    "--num-layers-per-virtual-pipeline-stage": (None, None, 1, 2, 3),
    "--num-virtual-stages-per-pipeline-rank": (None, None, 1, 2, 3),
}
TENSOR = {"--tensor-model-parallel-size": (1, 2, 3, 4)}
LAYOUTS = (
    "Ett|ttL",
    "Et|t|t|tL",
    "E|(t|)*4L",
    "Et,t|t,t|L",
    "Ett|tt",
    "tt|ttL",
    "Et|t|L",
    "Ett|E|ttL",
    "Et*4L",
    "Ex|tL",
)

KINDS = {
    "layers": LAYERS | COUNTED | {FIRST: (None, None, None, 2)},
    "ends": LAYERS | ENDS,
    "virtual": LAYERS | VIRTUAL,
    "virtual ends": LAYERS | VIRTUAL | ENDS,
    "virtual counted": LAYERS | VIRTUAL | COUNTED,
    "layouts": {name: (*[None] * 12, values[-1]) for name, values in {**ENDS, **COUNTED}.items()}
    | {"--pipeline-model-parallel-size": (1, 2, 2, 4), "--pipeline-model-parallel-layout": LAYOUTS}
    | {"--num-virtual-stages-per-pipeline-rank": (*[None] * 12, 2)},
    "hybrids": LAYERS
    | {"--hybrid-layer-pattern": ("M*|M*", "M*|M-|M*", "M*M*|M*M*|M*M*|M*M*", "M|M|M|M|M|M")}
    | {name: (*[None] * 12, values[-1]) for name, values in {**ENDS, **COUNTED, **VIRTUAL}.items()},
    "heads": TENSOR
    | {"--num-attention-heads": (2, 3, 4, 6), "--hidden-size": (12, 16, 24), "--kv-channels": (None, 8)}
    | {"--group-query-attention": (None, ""), "--num-query-groups": (None, 1, 2, 3, 4)},
    "widths": TENSOR
    | {"--ffn-hidden-size": (None, None, 12, 15, 32), "--swiglu": (None, "")}
    | {"--num-attention-heads": (12,), "--hidden-size": (24, 48)},
    "sequences": {
        "--tensor-model-parallel-size": (1, 2),
        "--sequence-parallel": (None, ""),
        "--seq-length": (6, 7, 8, 9),
    }
    | {"--context-parallel-size": (1, 2), "--max-position-embeddings": (9,), "--decoder-seq-length": (None, 8)},
    "experts": {"--num-experts": (None, 0, 4, 6, 8), "--expert-model-parallel-size": (1, 1, 2, 4)}
    | {"--tensor-model-parallel-size": (1, 2), "--sequence-parallel": (None, "", "")}
    | {"--expert-tensor-parallel-size": (None, 1, 2), "--moe-ffn-hidden-size": (None, None, 15, 16)}
    | {"--ffn-hidden-size": (None, None, 15)},
    "batches": {"--micro-batch-size": (0, 1, 1, 2), "--global-batch-size": (None, 0, 12, 24, 24)}
    | {"--pipeline-model-parallel-size": (1, 2, 4), "--tensor-model-parallel-size": (1, 2)},
}
"""Options, and the values that they have: none where the option is not given, an empty one for a switch."""


def command_lines(kind):
    draw = random.Random(kind)
    found = []
    while len(found) < COUNT:
        chosen = {option: draw.choice(values) for option, values in KINDS[kind].items()}
        options = {option: value for option, value in (FITTING | chosen).items() if value is not None}
        if not is_trained_in_part(options):
            words = [word for option, value in options.items() for word in (option, *str(value).split())]
            found.append((draw.choice(RANKS), [*words, *SWITCHES]))
    return found


def is_trained_in_part(options):
    """Whether some releases take it, and build stages with fewer layers than none."""
    ends = [options[option] for option in (FIRST, LAST) if option in options]
    return len(ends) > options.get("--pipeline-model-parallel-size", 1) or sum(ends) > options["--num-layers"]


def judge(ranks, words):
    """Why a command line is refused by its numbers; empty if it is not."""
    try:
        line = read_command_line(words, ranks)
    except UserError as error:
        return str(error)
    return "; ".join(map(str, unfit(line.setting)))


def ask(command_lines):
    """Megatron's answers to command lines; all at once, since it takes long to import."""
    words = [sys.executable, "-W", "ignore", "-m", "harness.scripts.megatron_takes"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()}
    done = subprocess.run(
        words, input=json.dumps(command_lines), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@needs_training
@pytest.mark.timeout(1800)
def test_what_does_not_fit_is_what_megatron_refuses():
    asked = [(kind, *each) for kind in KINDS for each in command_lines(kind)]
    answers = ask([each[1:] for each in asked])
    wrong = [
        f"{kind}: {' '.join(words)} on {ranks}: recycle {found!r}, Megatron {answer!r}"
        for (kind, ranks, words), answer in zip(asked, answers, strict=True)
        if bool(found := judge(ranks, words)) != bool(answer)
    ]
    assert not wrong, "\n".join(wrong)
    refused = Counter(kind for (kind, *_), answer in zip(asked, answers, strict=True) if answer)
    for kind in KINDS:
        assert 3 < refused[kind] < COUNT - 3, (
            f"{refused[kind]} of {COUNT} are refused of {kind}: others are hardly tried"
        )
