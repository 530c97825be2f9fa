"""What of Megatron's settings a plan can run with; everything else is refused with what to change."""

from collections.abc import Iterator
from typing import Any

import torch

from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError


def require_supported(model: torch.nn.Module, config: Any, plan: Plan) -> None:
    """Refuse a set-up that a plan cannot run.

    Args:
        model: the chunk as Megatron's training code passes it, wrapped in DDP or not.
        config: its configuration.
        plan: what is to be run.

    Raises:
        RunError: a setting has to be changed; the message says which and how.
    """
    for problem in _problems(model, config, plan):
        raise RunError(problem)


def _problems(model: torch.nn.Module, config: Any, plan: Plan) -> Iterator[str]:
    job = plan.job
    if config.virtual_pipeline_model_parallel_size is not None:
        yield "virtual_pipeline_model_parallel_size is set: plans are for one model chunk per server; leave it out"
    if config.pipeline_model_parallel_size != job.depth:
        yield (
            f"pipeline_model_parallel_size is {config.pipeline_model_parallel_size}, and the plan has "
            f"{job.depth} stages: make a plan for this job"
        )
    if config.context_parallel_size != 1:
        yield f"context_parallel_size is {config.context_parallel_size}: only 1 is supported"
    if config.num_moe_experts:
        yield f"num_moe_experts is {config.num_moe_experts}: mixtures of experts are not supported; leave it out"
    for name in ("overlap_p2p_comm", "variable_seq_lengths", "defer_embedding_wgrad_compute"):
        if getattr(config, name, False):
            yield f"{name} is on: a plan orders transfers and weight gradients itself; turn it off"
    wrapped = getattr(model, "ddp_config", None)
    for name in ("overlap_grad_reduce", "use_distributed_optimizer", "overlap_param_gather"):
        if getattr(wrapped, name, False):
            yield f"{name} is on: gradients are reduced as a whole when a stage is done; turn it off"
    if plan.mode.backward == "fused":
        return
    for name in ("sequence_parallel", "gradient_accumulation_fusion"):
        if getattr(config, name):
            yield f"{name} is on: it prevents a split backward pass; turn it off, or plan with --backward fused"
    for module in model.modules():
        if type(module).__module__.endswith("extensions.transformer_engine"):
            yield (
                f"{type(module).__name__} is a layer of Transformer Engine, whose backward pass is not split here: "
                "use the local layer spec (--transformer-impl local), or plan with --backward fused"
            )
            return
