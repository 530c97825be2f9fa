"""Imports for all what training scripts import, where there is no CUDA too."""

import warnings

import torch

from recycle.megatron.flag.cpu_training import stand_in_for_triton
from recycle.megatron.shared.cpu import run_on_cpu

warnings.simplefilter("ignore")
if not torch.cuda.is_available():
    run_on_cpu()
    stand_in_for_triton()

import megatron.core.datasets.gpt_dataset  # noqa: E402
import megatron.core.models.gpt  # noqa: E402
import megatron.training.training  # noqa: E402, F401
