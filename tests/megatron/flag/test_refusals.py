"""What of Megatron's settings is refused, and in which words."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from recycle.megatron.flag.command.megatron_options import megatron_parser
from recycle.megatron.flag.command.refusals import refusals, unsplit
from recycle.megatron.flag.run.schedule import require_supported
from recycle.runtime.errors import RunError

GOOD = {
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "moe_token_dispatcher_type": "allgather",
    "sequence_parallel": False,
    "gradient_accumulation_fusion": False,
}


def refuse(message, **changes):
    with pytest.raises(RunError, match=message):
        require_supported([torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD | changes))


def test_what_works_is_let_through():
    require_supported([torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD))
    require_supported([torch.nn.Linear(2, 2)], SimpleNamespace(**GOOD | {"sequence_parallel": True}))


def test_what_does_not_is_named_with_what_to_change():
    local = {"context_parallel_size": 2, "transformer_impl": "local"}
    refuse("transformer_impl is local: context parallelism .* use --transformer-impl transformer_engine", **local)
    refuse("defer_embedding_wgrad_compute is on: .* turn it off", defer_embedding_wgrad_compute=True)
    refuse("tp_comm_overlap is on: .* a server that comes back could not", tp_comm_overlap=True)
    refuse(
        "data_parallel_random_init is on: random states of dead servers .* leave it out", data_parallel_random_init=True
    )
    refuse("save is msc://saves: .* give a folder", save="msc://saves")
    refuse("non_persistent_global_ckpt_dir is msc://a/b: .* folder", non_persistent_global_ckpt_dir="msc://a/b")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            "--ddp-param-name-patterns-for-fp32-local-accumulation all",
            "ddp_param_name_patterns_for_fp32_local_accumulation",
        ),
        (
            "--use-distributed-optimizer --ddp-reduce-scatter-with-fp32-accumulation",
            "ddp_reduce_scatter_with_fp32_accumulation",
        ),
        ("--save-tokens-per-expert-interval 2", "save_tokens_per_expert_interval"),
        ("--save-activations-interval 2", "save_activations_interval"),
        ("--skip-train", "skip_train"),
        ("--dsa-indexer-loss-coeff 0.1", "dsa_indexer_loss_coeff"),
        ("--adlr-autoresume", "adlr_autoresume"),
        ("--qk-clip", "qk_clip"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(words, name):
    given = vars(megatron_parser().parse_args(words.split()))
    assert [each.name for each in refusals(given.get) if each.name == name] == [name]
    assert name not in [each.name for each in refusals(vars(megatron_parser().parse_args([])).get)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"transformer_impl": "local"}, None),
        (
            {"transformer_impl": "local", "gradient_accumulation_fusion": True},
            "gradient_accumulation_fusion is on: .* plan with --backward fused",
        ),
        ({"gradient_accumulation_fusion": True}, None),
        ({"moe_grouped_gemm": True}, "moe_grouped_gemm is on: .* leave out --no-gradient-accumulation-fusion"),
        ({"moe_grouped_gemm": True, "gradient_accumulation_fusion": True}, None),
        ({"use_transformer_engine_op_fuser": True}, "use_transformer_engine_op_fuser is on: .* leave it out"),
    ],
)
def test_what_prevents_a_split_depends_on_whose_layers_there_are(settings, reason):
    settings = {"transformer_impl": "transformer_engine"} | settings
    found = [str(each) for each in unsplit(settings.get)]
    assert len(found) == (reason is not None)
    assert not found or re.fullmatch(f"{reason}.*", found[0])


def test_every_test_that_the_documents_name_is_there():
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (here.parents[2] / "docs" / "internals" / "megatron.md").read_text())
    tests = "".join(each.read_text() for each in here.glob("test_*.py"))
    assert named
    assert [each for each in named if f"def {each}(" not in tests] == []
