"""What torch's reductions make of the tensors that ranks have put in."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from recycle.runtime.errors import RunError

REDUCTIONS: Sequence[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = (
    (ReduceOp.SUM, lambda rows: rows.sum(0, dtype=rows.dtype)),
    (ReduceOp.PRODUCT, lambda rows: rows.prod(0, dtype=rows.dtype)),
    (ReduceOp.MIN, lambda rows: rows.amin(0)),
    (ReduceOp.MAX, lambda rows: rows.amax(0)),
    (ReduceOp.AVG, lambda rows: rows.mean(0)),
)


def reduction_of(how: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes one tensor of a row of them, as a reduction of torch's does.

    Raises:
        RunError: nobody knows how.
    """
    reduction = next((act for each, act in REDUCTIONS if how == each), None)
    if reduction is None:
        raise RunError(
            f"torch.distributed: a reduction by {how.op.name} is not carried through failures; do without it"
        )
    return reduction
