"""What of Megatron's settings is refused, and in which words."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.examples import QUICK, paper_job
from recycle.megatron.flag.device.requirements import require_supported
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import RunError

JOB = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
SPLIT, FUSED = (make_plan(JOB, [], mode, QUICK) for mode in (Mode(), Mode("fused", "global")))
GOOD = {
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "moe_token_dispatcher_type": "allgather",
    "sequence_parallel": False,
    "gradient_accumulation_fusion": False,
}


class EngineLinear(torch.nn.Linear):
    """A stand-in for a layer of Transformer Engine, which does not install without CUDA."""

    __module__ = "megatron.core.extensions.transformer_engine"


class DelayingLinear(EngineLinear):
    """Such a layer, of a release that leaves its weight gradients."""

    __module__ = EngineLinear.__module__
    wgrad_store = SimpleNamespace(delay_wgrad_compute=lambda: True)

    def backward_dw(self):
        raise AssertionError


def refuse(message, plan=SPLIT, model=None, **changes):
    with pytest.raises(RunError, match=message):
        require_supported([model or torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD | changes), plan)


def test_what_works_is_let_through():
    require_supported([torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD), SPLIT)
    require_supported([torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD | {"sequence_parallel": True}), SPLIT)
    require_supported([EngineLinear(2, 2)], SimpleNamespace(**GOOD | {"gradient_accumulation_fusion": True}), FUSED)


def test_what_does_not_is_named_with_what_to_change():
    with pytest.raises(RunError, match="it comes in 2 chunks, and the plan has 1 per server"):
        require_supported([torch.nn.Linear(2, 2)] * 2, SimpleNamespace(**GOOD), SPLIT)
    refuse("pipeline_model_parallel_size is 4, and the plan has 2 stages", pipeline_model_parallel_size=4)
    local = {"context_parallel_size": 2, "transformer_impl": "local"}
    refuse("transformer_impl is local: context parallelism .* use --transformer-impl transformer_engine", **local)
    refuse("defer_embedding_wgrad_compute is on: .* turn it off", defer_embedding_wgrad_compute=True)
    refuse("gradient_accumulation_fusion is on: .* plan with --backward fused", gradient_accumulation_fusion=True)
    refuse(
        "tp_comm_overlap is on: .* a server that comes back could not", model=DelayingLinear(2, 2), tp_comm_overlap=True
    )
    refuse("EngineLinear is a layer of Transformer Engine that leaves no weight gradients", model=EngineLinear(2, 2))


def test_layers_of_transformer_engine_split_themselves():
    settings = {"sequence_parallel": True, "gradient_accumulation_fusion": True, "delay_wgrad_compute": True}
    require_supported([DelayingLinear(2, 2)], SimpleNamespace(**GOOD | settings), SPLIT)


def test_every_test_that_the_documents_name_is_there():
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (here.parents[2] / "docs" / "internals" / "megatron.md").read_text())
    tests = "".join(each.read_text() for each in here.glob("test_*.py"))
    assert named
    assert [each for each in named if f"def {each}(" not in tests] == []
