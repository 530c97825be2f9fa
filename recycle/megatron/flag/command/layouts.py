"""How Megatron writes down which layers each stage has."""

import re

from recycle.errors import UserError

EMBEDDING, DECODER, PREDICTION, LOSS = "E", "t", "m", "L"
LETTERS = {EMBEDDING: "embedding", DECODER: "layer", PREDICTION: "multi-token prediction", LOSS: "loss"}
REPEATED = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")
"""What is repeated: a part in parentheses, and a letter."""

MOST_LETTERS = 100_000
"""Of all stages together, and what divides them."""


def stages_of(layout: str) -> list[str]:
    """The letters of each stage, virtual ones too, in the order of the layers.

    Raises:
        UserError: there are too many.
    """
    written = layout.replace(",", "")
    for repeated in REPEATED:
        written = re.sub(repeated, _repeated, written)
        if len(written) > MOST_LETTERS:
            raise _too_many(layout)
    return written.split("|")


def _repeated(found: re.Match[str]) -> str:
    part, times = found[1], found[2].lstrip("0")
    if len(times) > len(str(MOST_LETTERS)) or len(part) * int(times or 0) > MOST_LETTERS:
        raise _too_many(found[0])
    return part * int(times or 0)


def _too_many(layout: str) -> UserError:
    return UserError(
        f"--pipeline-model-parallel-layout {layout[:100]}: it has more than {MOST_LETTERS} layers; repeat less often"
    )
