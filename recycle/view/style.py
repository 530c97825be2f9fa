"""Colours and marks of all views: an op has a fill, re-routed work the outline and hatch of its home pipeline."""

from collections.abc import Mapping

from recycle.plan.instruction import Instruction, Op

FILL: Mapping[Op, str] = {
    Op.F: "#2f6db5",
    Op.I: "#45a9a2",
    Op.W: "#a9d98b",
    Op.B: "#f2a24a",
    Op.REDUCE: "#cdbce3",
    Op.STEP: "#7b57a8",
    Op.SEND_F: "#8fb3dc",
    Op.RECV_F: "#8fb3dc",
    Op.SEND_B: "#9fd3cf",
    Op.RECV_B: "#9fd3cf",
}
"""Fill of each op. The lightness of the compute ops differs too, so they can be told apart in greyscale."""

INK: Mapping[Op, str] = {op: "#ffffff" if op in (Op.F, Op.STEP) else "#14181d" for op in Op}
"""Colour of the text on a fill."""

EDGES: Mapping[Op, str] = {Op.I: "top", Op.W: "bottom", Op.B: "top bottom"}
"""A dark edge on the box, a second sign beside the fill: I above, W below, and B, which is both, on both sides."""

HOME = ("#5c3a21", "#c1121f", "#16202c", "#b5179e", "#6f6200")
"""Colours of home pipelines, used in turn: different from every fill."""

PAUSE = "#ffd54a"
"""The time in which a server changes views."""

VOID = "#7b8591"
"""Work that a failure made void, where it is not recorded."""

PALE = 0.35
"""How much of a colour is left in void work."""

BACK = "#2e8b57"
"""Marks where a server came back."""

MEANING: Mapping[Op, str] = {
    Op.F: "forward",
    Op.I: "input gradient",
    Op.W: "weight gradient",
    Op.B: "backward (I and W at once)",
    Op.REDUCE: "gradient reduction",
    Op.STEP: "optimizer step",
    Op.SEND_F: "sends an activation",
    Op.RECV_F: "receives an activation",
    Op.SEND_B: "sends a gradient",
    Op.RECV_B: "receives a gradient",
}
"""Each op in words."""


def label(instruction: Instruction) -> str:
    """What stands in an instruction's box: the number of its micro-batch, or else its name."""
    op = instruction.op
    return str(instruction.micro_batch) if op.is_compute else op.value.lower()


def home_color(pipeline: int) -> str:
    """The colour of a home pipeline."""
    return HOME[pipeline % len(HOME)]
