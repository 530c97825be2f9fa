"""Torch's optimizers where Megatron would take fused ones: a stage that steps on its own can take their steps back."""

import torch

from recycle.megatron.shared.patching import replace


def take_torch_optimizers() -> None:
    """Have Megatron make Adam and SGD of torch's, whatever of Transformer Engine's or Apex's is installed."""
    from megatron.core import optimizer

    for name, value in (("USING_PYTORCH_OPTIMIZER", True), ("Adam", torch.optim.AdamW), ("SGD", torch.optim.SGD)):
        replace(optimizer, name, value)
