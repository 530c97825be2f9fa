"""How Megatron writes down which layers each stage has."""

import re

EMBEDDING, DECODER, PREDICTION, LOSS = "E", "t", "m", "L"
LETTERS = {EMBEDDING: "embedding", DECODER: "layer", PREDICTION: "multi-token prediction", LOSS: "loss"}
REPEATED = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")
"""What is repeated: a part in parentheses, and a letter."""


def stages_of(layout: str) -> list[str]:
    """The letters of each stage, virtual ones too, in the order of the layers."""
    written = layout.replace(",", "")
    for repeated in REPEATED:
        written = re.sub(repeated, lambda found: found[1] * int(found[2]), written)
    return written.split("|")
