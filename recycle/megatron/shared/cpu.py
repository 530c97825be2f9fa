"""Megatron without CUDA: the names it calls unconditionally, pointed at the CPU, for processes that compute there."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from recycle.files import require_temporary_folder
from recycle.megatron.shared.missing import stand_in_for_triton
from recycle.megatron.shared.patching import replace
from recycle.runtime.device import spare_cuda

FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "zeros_like", "ones_like", "empty_like", "rand")


@cache
def run_on_cpu() -> tuple[str, ...]:
    """Make Megatron run on this machine's CPU, once; say what was done for it."""
    _import_uncompiled()
    from megatron.core.tensor_parallel import random

    # A GPU that is there all the same is left alone: torch saves checkpoints with its help, once it finds one.
    replace(torch.cuda, "is_available", lambda: False)
    # Buffers are made on "the current device".
    replace(torch.cuda, "current_device", lambda: torch.device("cpu"))
    # Counters and scales are made with device="cuda".
    for name in FACTORIES:
        replace(torch, name, _on_cpu(getattr(torch, name)))
    # Dropout's streams are states of the CUDA generator; without it, of the CPU's.
    replace(torch.cuda, "get_rng_state", lambda device="cuda": torch.get_rng_state())
    replace(torch.cuda, "set_rng_state", lambda state, device="cuda": torch.set_rng_state(state))
    # torch.manual_seed would also note who has called it, for when a GPU is used.
    replace(torch.cuda, "manual_seed", torch.default_generator.manual_seed)
    replace(random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state())
    replace(random, "_set_cuda_rng_state", lambda new_state, *_, **__: torch.set_rng_state(new_state))
    # Gradient norms ask tensors for their type and expect a CUDA one.
    replace(torch.Tensor, "type", _type)
    replace(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
    return (
        "torch.cuda.is_available says no",
        "torch.cuda.current_device gives the CPU",
        f"{', '.join(FACTORIES)} take device='cuda' for the CPU",
        "CUDA random states are the CPU generator's",
        "Tensor.type() names CPU tensors as Megatron expects CUDA tensors to be named",
        "Tensor.cuda() leaves a tensor where it is",
        "functions that Megatron would compile are called as they are",
        "modules that cannot be imported without Triton have no kernels",
    )


def import_megatron() -> None:
    """Import Megatron for processes that will fork those that compute.

    Where torch is built for the CPU only, who imports Megatron after this finds its functions as they are written.

    Raises:
        UserError: there is no folder for temporary files.
    """
    require_temporary_folder()
    spare_cuda()
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        _import_uncompiled()


def _import_uncompiled() -> None:
    """Import Megatron, which has its fused functions compiled: to prepare that takes longer than all the rest."""
    stand_in_for_triton()
    own_compile = replace(torch, "compile", _leave_uncompiled)
    try:
        import_module("megatron.core.models.gpt.gpt_layer_specs")
    finally:
        replace(torch, "compile", own_compile)
    # Every optimizer imports it when it is made, which is cheaper before processes are forked.
    import_module("torch._dynamo")


def _leave_uncompiled(function: Any = None, **_: Any) -> Any:
    return function or _leave_uncompiled


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **keywords: Any) -> Any:
        device = keywords.get("device")
        if device is not None and torch.device(device).type == "cuda":
            keywords["device"] = "cpu"
        return factory(*arguments, **keywords)

    return make


_original_type = torch.Tensor.type


def _type(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    if arguments or keywords:
        return _original_type(self, *arguments, **keywords)
    return _original_type(self).replace("torch.", "torch.cuda.", 1)
