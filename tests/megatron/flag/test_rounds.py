"""How often an iteration under the flag has the host wait for other ranks, by what asks for that."""

import re

import msgspec
import pytest

from harness.flag_runs import make_dataset, needs_training, train

pytestmark = [needs_training, pytest.mark.timeout(1200)]

PLAIN = 6
"""An iteration after which nothing is evaluated."""

AROUND = {
    # Each server says that its gradients are whole, and then that it has heard this from all others.
    "redone": 1,
    "vote": 1,
    # What Megatron asks around its schedule: the norm, the outcome of the step, the learning rate, and twice, when it
    # prints a line, whether all ranks are there.
    "collectives": 5,
}
OF_STAGE = [
    {"shared_sums": 1, "ties": 1, **AROUND},
    # Losses are exchanged while gradients are summed, and summed while those of tied embeddings are.
    {"loss_table": 2, "shared_sums (beside)": 1, "ties (beside)": 1, **AROUND},
]


def test_no_iteration_has_more_rounds_than_these(tmp_path):
    dataset = make_dataset(tmp_path / "text")
    output = train(
        dataset, "--pipeline-schedule", "recycle", "--recycle-budget", "500ms", script="rounds_gpt.py"
    ).output
    said = dict(re.findall(r"rounds of rank (\d): (.*)", output))
    assert len(said) == 4
    for rank, text in said.items():
        rounds = msgspec.json.decode(text, type=list[dict[str, int]])[PLAIN]
        # Once in some iterations, and nobody waits for it.
        assert rounds.pop("notices", 0) + rounds.pop("notices (beside)", 0) <= 1
        assert rounds == OF_STAGE[int(rank) // 2]
