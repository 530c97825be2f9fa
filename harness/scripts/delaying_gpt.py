"""The same training script with layers that can leave their weight gradients, as Transformer Engine's do on GPUs.

They are Megatron's own, but for their products: these stand in for Transformer Engine's, and add to ``main_grad``.
The script is another one of this folder, which SCRIPT names.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import utils
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from packaging.version import Version

from harness.delaying_layers import How, Store, apply

LATE = "weight gradients are computed late"
"""What a process prints when it first computes some that were left."""


class Delaying:
    """What Megatron's wrappers of Transformer Engine's layers have and its own layers have not."""

    said = False
    config: Any
    weight: Any
    bias: Any

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.wgrad_store = Store()
        self.fuse_wgrad_accumulation = True

    def _forward_impl(
        self, input: torch.Tensor, weight: torch.Tensor, *_: Any, bias: torch.Tensor | None, **__: Any
    ) -> torch.Tensor:
        return apply(input, weight, bias, self.wgrad_store, How(fused=True))

    def backward_dw(self) -> None:
        if not self.config.delay_wgrad_compute:
            return
        if not Delaying.said:
            Delaying.said = True
            sys.stdout.write(f"{LATE}\n")
            sys.stdout.flush()
        self.weight.grad, bias = self.wgrad_store.pop()
        if self.bias is not None and self.bias.grad is None:
            self.bias.grad = bias.to(self.bias.dtype)


class DelayingColumns(Delaying, ColumnParallelLinear):  # type: ignore[misc]
    """In the place of TEColumnParallelLinear."""


class DelayingRows(Delaying, RowParallelLinear):  # type: ignore[misc]
    """In the place of TERowParallelLinear."""


if __name__ == "__main__":
    utils.get_te_version = lambda: Version("2.8.0")
    LocalSpecProvider.column_parallel_linear = lambda self: DelayingColumns
    LocalSpecProvider.row_parallel_linear = lambda self: DelayingRows
    runpy.run_path(str(Path(__file__).with_name(os.environ["SCRIPT"])), run_name="__main__")
