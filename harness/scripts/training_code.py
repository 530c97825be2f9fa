"""Imports for all what training scripts import, where there is no CUDA too."""

import warnings

import torch

from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.missing import make_importable

warnings.simplefilter("ignore")
if not torch.cuda.is_available():
    make_importable()
    run_on_cpu()

import megatron.core.datasets.gpt_dataset  # noqa: E402
import megatron.core.models.gpt  # noqa: E402
import megatron.training.training  # noqa: E402, F401
