"""What of Megatron's settings a plan can run with, in one table; everything else is refused with what to change."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from recycle.megatron.flag.command.flags import Flags

Settings = Callable[[str], Any]
"""A setting's value by its name in Megatron's arguments or configuration; None where there is no such setting."""


class Advice(NamedTuple):
    """Why something is refused, and what to do about it."""

    reason: str
    remedy: str = "leave it out"


class Rule(NamedTuple):
    """A setting that matters.

    Attributes:
        names: what the setting is called; Megatron's arguments and its configuration do not always agree.
        accepted: the values with which a plan can run. None, for a setting that is not there, always is.
        advice: on all others.
    """

    names: tuple[str, ...]
    accepted: tuple[Any, ...]
    advice: Advice


class Refusal(NamedTuple):
    """A setting that is refused.

    Attributes:
        name: of the setting.
        value: that it has.
        advice: why, and what to do.
    """

    name: str
    value: Any
    advice: Advice

    def __str__(self) -> str:
        value = "on" if self.value is True else self.value
        return f"{self.name} is {value}: {self.advice.reason}; {self.advice.remedy}"


def _off(name: str, advice: Advice) -> Rule:
    return Rule((name,), (False,), advice)


GRAPHS = Advice("a recorded graph runs one fixed order, and a plan's order changes with the failures")
BALANCE = Advice(
    "its counts are summed over pipelines, which compute micro-batches in different orders", "use aux_loss"
)
LAYER_WISE = Advice("peers cannot give each other its whole state, so a dead one's is lost", "use adam or sgd")
MOVED = Advice("it follows the micro-batches of a rank, and a plan moves them")
COMMUNICATORS = Advice("each view makes its own communicators between servers, without torch")
OUTSIDE = COMMUNICATORS._replace(remedy="name groups inside a server only: tp, ep, cp")
DRAWN = Advice("its random numbers depend on which server draws them")
REMOTE = Advice("an unfinished checkpoint is removed in folders only", "give a folder")
VIRTUAL_OUT = "leave virtual stages out"
OWN_PART = "each rank keeps its own part, and no live rank has that of a dead one"

RULES = (
    Rule(("moe_router_load_balancing_type",), ("aux_loss", "seq_aux_loss", "sinkhorn", "none"), BALANCE),
    _off("moe_router_enable_expert_bias", BALANCE),
    Rule(("moe_input_jitter_eps", "moe_router_force_biased"), (), DRAWN),
    Rule(("moe_router_force_load_balancing", "fim_data"), (False,), DRAWN),
    _off("qk_clip", Advice("if a death ends an iteration, its greatest logit may come from data that never arrived")),
    _off("overlap_moe_expert_parallel_comm", Advice("a plan orders micro-batches itself", "turn it off")),
    Rule(("non_persistent_ckpt_type",), ("global",), Advice(OWN_PART, "use global")),
    Rule(("save_wgrads_interval", "save_dgrads_interval"), (), Advice(OWN_PART)),
    _off("data_parallel_random_init", Advice("random states of dead servers are in no checkpoint")),
    Rule(
        ("phase_transition_iterations",),
        (),
        Advice("each phase counts its samples anew, and for other pipelines they are counted from the first phase"),
    ),
    _off("enable_ft_package", Advice("its monitor ends ranks that wait for a recovery")),
    _off(
        "full_validation",
        Advice("the first rank tells the others how long each evaluation is, and it may be dead", "use --eval-iters"),
    ),
    _off("log_straggler", Advice("it compares all ranks, and dead ones do not answer")),
    Rule(("dsa_indexer_loss_coeff",), (0,), Advice("its losses are not counted")),
    Rule(
        ("mtp_num_layers",),
        (0,),
        Advice(
            "losses of multi-token prediction are not counted",
            "leave it out, and what --hybrid-layer-pattern has behind a /",
        ),
    ),
    _off("adlr_autoresume", Advice(OWN_PART, "leave it out; SIGTERM to all ranks writes a checkpoint")),
    Rule(
        ("ddp_param_name_patterns_for_fp32_local_accumulation", "ddp_reduce_scatter_with_fp32_accumulation"),
        (False, []),
        Advice("gradients have one type, in micro-batches and in sums", "use --accumulate-allreduce-grads-in-fp32"),
    ),
    Rule(("fp4",), (), Advice("gradients are rounded at random, by where they are computed", "train with --bf16")),
    Rule(
        ("use_megatron_fsdp", "use_torch_fsdp2"),
        (False,),
        Advice("parameters are sharded over peers, so no peer has a whole stage"),
    ),
    Rule(
        ("tp_comm_overlap", "dump_param_to_param_group_map"),
        (False,),
        Advice("all ranks of the job set it up together, and a server that comes back could not"),
    ),
    _off("variable_seq_lengths", Advice("receives are posted before it is known what is sent", "turn it off")),
    Rule(
        ("defer_embedding_wgrad_compute", "delay_wgrad_compute", "overlap_dispatch_backward_with_experts_wgrad"),
        (False,),
        Advice("a plan orders weight gradients itself", "turn it off"),
    ),
    _off(
        "fine_grained_activation_offloading", Advice("activations are counted where they were computed", "turn it off")
    ),
    _off("hybrid_context_parallel", Advice("micro-batches change their shape and place", "turn it off")),
    _off("decrease_batch_size_if_needed", Advice("a plan is for one number of micro-batches", "turn it off")),
    _off("perform_rl_step", Advice("only pretraining is supported", "turn it off")),
    _off("inprocess_restart", Advice("it restarts ranks on its own when one fails", "turn it off")),
    _off("use_legacy_models", Advice("only the models of megatron.core are supported")),
    Rule(("enable_cuda_graph", "external_cuda_graph", "optimizer_cuda_graph"), (False,), GRAPHS),
    Rule(("cuda_graph_impl",), ("none",), GRAPHS),
    Rule(
        ("step_batch_size_schedule",),
        (),
        Advice(
            "a plan is for one batch size, and Megatron takes no --global-batch-size beside this option",
            "give --global-batch-size instead",
        ),
    ),
    Rule(
        ("optimizer",),
        ("adam", "sgd", "muon", "adaptive_muon", "lion"),
        LAYER_WISE._replace(remedy="use adam, sgd, muon, adaptive_muon or lion"),
    ),
    Rule(("muon_tp_mode",), ("blockwise",), Advice("others keep whole matrices in host memory", "use blockwise")),
    Rule(("te_precision_config_file",), (), Advice("how it rounds is not known here", "use --fp8-format")),
    _off("freeze_all_layers", Advice("a stage has no optimizer if nothing of it is trained")),
    _off("skip_train", Advice("nothing is trained that could be protected", "use --pipeline-schedule stock")),
    _off("test_mode", Advice("it compares all ranks in each forward pass, and dead ones do not answer")),
    _off("use_layer_wise_distributed_optimizer", LAYER_WISE),
    Rule(("moe_expert_rank_capacity_factor",), (), Advice("where experts get more, Megatron runs its schedule again")),
    _off("moe_paged_stash", Advice("pages are given back in the order of Megatron's own schedule")),
    Rule(("gpu_sniff_test_interval",), (), Advice("ranks send to each other in it, and dead ones do not answer")),
    Rule(("pipeline_model_parallel_comm_backend",), (), COMMUNICATORS),
    _off("te_rng_tracker", Advice("its random states are objects on a GPU, and a returning server is given tensors")),
    Rule(("logits_save_dir", "logits_load_dir", "moe_routing_trace_path"), (), MOVED),
    Rule(("save_tokens_per_expert_interval", "save_activations_interval"), (), MOVED),
    Rule(
        ("num_microbatches_with_partial_activation_checkpoints",),
        (),
        Advice("which micro-batches are recomputed would depend on where they run"),
    ),
    Rule(("decoder_seq_length",), (), Advice("models with an encoder and a decoder are not supported")),
    Rule(
        ("dataloader_type",),
        ("single", "cyclic"),
        Advice(
            "an external loader knows only its own pipeline's data, and peers need that of failed ones", "use single"
        ),
    ),
    Rule(
        ("distributed_backend",),
        ("gloo", "nccl"),
        Advice("servers send to each other over one of these", "use --distributed-backend gloo"),
    ),
)

SKIPPING = (
    Rule(
        ("pipeline_model_parallel_size",),
        (1, 2),
        Advice("Megatron ends where it skips an iteration on a stage that reads no data", "take one or two stages"),
    ),
    Rule(
        ("virtual_pipeline_model_parallel_size",),
        (1,),
        Advice("Megatron ends where it skips an iteration on a rank with several iterators", VIRTUAL_OUT),
    ),
)
"""What --iterations-to-skip needs."""

EVALUATED = Advice("evaluations run the plan of training")
REMATERIALIZED = Advice("weights are sharded over peers, so no peer has a whole stage")

AS_ANOTHER = (
    ("eval_global_batch_size", "global_batch_size", EVALUATED),
    ("eval_micro_batch_size", "micro_batch_size", EVALUATED),
    ("tensor_parallel_num_weight_shards", "tensor_model_parallel_size", REMATERIALIZED),
    ("expert_tensor_parallel_num_weight_shards", "expert_tensor_parallel_size", REMATERIALIZED),
)
"""Settings that need the value of another one, which is what Megatron gives them."""

OVER_NCCL = (
    Rule(
        ("timing_log_level",),
        (0, 1),
        Advice(
            "in the middle of a schedule, its timers wait for all work of the GPU, and some of that waits for others",
            "use --timing-log-level 1",
        ),
    ),
    Rule(("use_sharp", "nccl_ub"), (False,), COMMUNICATORS),
)
"""What NCCL needs."""

INSIDE = frozenset(("tp", "cp", "hcp", "tp_cp", "ep", "ep_tp", "tp_ep_mp"))
"""Megatron's names of groups inside a server, whose communicators torch makes with the settings that they are given."""

UNSPLIT = (
    _off(
        "gradient_accumulation_fusion",
        Advice(
            "a fused accumulation of gradients prevents a split backward pass",
            "add --no-gradient-accumulation-fusion, or plan with --backward fused",
        ),
    ),
    Rule(
        ("transformer_impl",),
        ("local",),
        Advice(
            "its layers do not split their backward pass here",
            "use --transformer-impl local, or plan with --backward fused",
        ),
    ),
)
"""What prevents a split of Megatron's own layers."""

UNSPLIT_ENGINE = _off(
    "use_transformer_engine_op_fuser",
    Advice(
        "operations that Transformer Engine fuses compute weight gradients at once",
        "leave it out, or plan with --backward fused",
    ),
)
UNSPLIT_EXPERTS = _off(
    "moe_grouped_gemm",
    Advice(
        "experts of Transformer Engine leave weight gradients only if they add them up themselves",
        "leave out --no-gradient-accumulation-fusion, or plan with --backward fused",
    ),
)
"""What prevents a split of Transformer Engine's layers, the second without fused accumulation of gradients only."""

CONTEXT = (
    Rule(
        ("transformer_impl",),
        ("transformer_engine",),
        Advice("context parallelism needs layers of Transformer Engine", "use --transformer-impl transformer_engine"),
    ),
)
"""What a split of sequences over ranks needs."""

EIGHT_BITS = (
    Rule(
        ("fp8_recipe",),
        ("tensorwise", "blockwise", "mxfp8"),
        Advice(
            "its scales take a collective of all pipelines after each micro-batch, and pipelines compute these in "
            "different orders",
            "use --fp8-recipe tensorwise, blockwise or mxfp8",
        ),
    ),
    Rule(("fp8_param_gather", "fp8_param"), (False,), Advice("a returning server is not given rounded parameters")),
    Rule(
        ("transformer_impl",),
        ("transformer_engine",),
        Advice("other layers ignore it", "use --transformer-impl transformer_engine, or --bf16 alone"),
    ),
)
"""What layers need that compute with eight bits; they are told which micro-batch is the first after a step."""

SHARDED = (
    Rule(("num_distributed_optimizer_instances",), (1,), Advice("peers mirror each other's shards as it is")),
    Rule(("optimizer",), ("adam",), LAYER_WISE._replace(remedy="use adam")),
    _off("fp16", Advice("each rank looks for overflow in its own shard only", "use --bf16")),
    Rule(("loss_scale",), (), Advice("each rank unscales its own shard only")),
    _off("optimizer_cpu_offload", Advice("its state is in two places", "turn it off")),
    _off("use_precision_aware_optimizer", Advice("its state is the inner optimizer's own", "turn it off")),
)
"""What a distributed optimizer needs, so that a failure loses no shard of it."""

SHARDED_CHECKPOINTS = (
    Rule(
        ("ckpt_format",),
        ("torch", "torch_dist"),
        Advice("it is not known how a shard of a dead server is written in it", "use --ckpt-format torch_dist"),
    ),
)
"""What its checkpoints need."""

READ_ONLY = (
    Rule(("context_parallel_size",), (1,), Advice("its layers need CUDA", "try a death before you rely on it")),
    Rule(("fp8",), (), Advice("its layers need CUDA", "try a death before you rely on it")),
    Rule(
        ("moe_token_dispatcher_type",),
        ("allgather", "alltoall"),
        Advice("DeepEP and HybridEP need CUDA", "try a death before you rely on it"),
    ),
)
"""What was read in Megatron's code and has never been run here."""

NOT_MADE_AGAIN = (
    Rule(
        ("optimizer",),
        ("adam", "sgd"),
        Advice("it is not known what its state consists of, and so how its step is redone", "use adam or sgd"),
    ),
    _off("optimizer_cpu_offload", Advice("its state is in two places", "turn it off")),
    _off("use_precision_aware_optimizer", Advice("parts of its state are rounded", "turn it off")),
)
"""What steps need that may be made again from the state before them."""

NOT_KEPT = (
    *NOT_MADE_AGAIN,
    _off("fp16", Advice("after the loss of a stage, all redo a step, and it may overflow then", "use --bf16")),
)
"""What they need where all have gone on from them, so that none can be skipped any more."""

NOT_OWN = (
    *NOT_MADE_AGAIN,
    Rule(
        ("virtual_pipeline_model_parallel_size",),
        (1,),
        Advice("the virtual stages of a server are stepped as one", VIRTUAL_OUT),
    ),
    Rule(("num_experts",), (), Advice("the losses that the routers of experts report cannot be undone with a step")),
    Rule(("context_parallel_size",), (1,), Advice("each rank sums a part of a sequence")),
    Rule(("fp8",), (), Advice("layers cache rounded weights, which an undone step leaves stale", "train with --bf16")),
    _off("fp16", Advice("whether a step is skipped is known only after stages have gone on", "use --bf16")),
    Rule(("loss_scale",), (), Advice("stages do not divide by it, and --bf16 needs none")),
    _off("grad_reduce_in_bf16", Advice("gradients are added up in full precision")),
    _off("log_num_zeros_in_grad", Advice("they are not counted")),
    Rule(("rampup_batch_size",), (), Advice("redone iterations would have other batches")),
    _off("use_distributed_optimizer", Advice("a step cannot be taken back by one server alone", "turn it off")),
)
"""What stages need that step on their own."""

EXACT_CHECKPOINTS = (
    Rule(
        ("ckpt_format",),
        ("torch",),
        Advice("what exact sums go on from has no place in it", "save with --ckpt-format torch"),
    ),
)


HELD: Sequence[tuple[Callable[[Settings], Any], tuple[Rule, ...]]] = (
    (lambda _: True, RULES),
    (lambda of: of("iterations_to_skip"), SKIPPING),
    (lambda of: of("distributed_backend") == "nccl", OVER_NCCL),
    (lambda of: of("use_distributed_optimizer"), SHARDED),
    (lambda of: of("use_distributed_optimizer") and of("save") is not None, SHARDED_CHECKPOINTS),
    (lambda of: of("context_parallel_size") not in (None, 1), CONTEXT),
    (lambda of: of("fp8") is not None, EIGHT_BITS),
)
"""The rules of every plan, each with the jobs that it is for."""


def refused(settings: Settings, flags: Flags, lacks_nccl: str = "") -> Iterator[Refusal]:
    """What has to be changed before a job can run by a plan; nothing if all is well.

    Args:
        settings: Megatron's.
        flags: recycle's.
        lacks_nccl: why NCCL cannot carry anything; empty if it can.
    """
    yield from refusals(settings, lacks_nccl)
    if flags.owns_steps:
        yield from not_own(settings, flags.exact)
    elif flags.keep_in_memory is not None:
        yield from _broken(NOT_KEPT, settings)


def not_own(settings: Settings, exact: bool) -> Iterator[Refusal]:
    """Why stages cannot be stepped by recycle, staggered or with exact sums; nothing if they can.

    Args:
        settings: Megatron's.
        exact: whether sums are exact.
    """
    yield from _broken(NOT_OWN, settings)
    if exact and settings("save") is not None:
        yield from _broken(EXACT_CHECKPOINTS, settings)


def refusals(settings: Settings, lacks_nccl: str = "") -> Iterator[Refusal]:
    """What has to be changed before any plan can run; nothing if all is well.

    Args:
        settings: Megatron's.
        lacks_nccl: why NCCL cannot carry anything; empty if it can.
    """
    for holds, rules in HELD:
        if holds(settings):
            yield from _broken(rules, settings)
    for name in ("save", "non_persistent_global_ckpt_dir"):
        if str(settings(name)).startswith("msc://"):
            yield Refusal(name, settings(name), REMOTE)
    for name, other, advice in AS_ANOTHER:
        if settings(name) not in (None, settings(other)):
            yield Refusal(name, settings(name), advice)
    if settings("distributed_backend") == "nccl":
        if lacks_nccl:
            yield Refusal("distributed_backend", "nccl", Advice(lacks_nccl, "use --distributed-backend gloo"))
        for name, groups in _groups_with_settings(settings).items():
            if not INSIDE.issuperset(groups):
                yield Refusal(name, settings(name), OUTSIDE)


def _groups_with_settings(settings: Settings) -> dict[str, Collection[str]]:
    """The groups for whose communicators something is set, by where that is; what cannot be read is not known."""
    content = ""
    with suppress(OSError, TypeError):
        content = Path(settings("nccl_communicator_config_path")).read_text()
    return {
        "nccl_communicator_config_path": re.findall(r"^['\"]?(\w+)['\"]?\s*:", content, re.MULTILINE),
        "high_priority_stream_groups": settings("high_priority_stream_groups") or (),
    }


def read_only(settings: Settings) -> Iterator[Refusal]:
    """What of the settings nobody has run here; nothing if all was."""
    return _broken(READ_ONLY, settings)


def unsplit(settings: Settings) -> Iterator[Refusal]:
    """Why the backward pass cannot be split; nothing if it can."""
    if settings("transformer_impl") != "transformer_engine":
        return _broken(UNSPLIT, settings)
    experts = () if settings("gradient_accumulation_fusion") else (UNSPLIT_EXPERTS,)
    return _broken((UNSPLIT_ENGINE, *experts), settings)


def _broken(rules: tuple[Rule, ...], settings: Settings) -> Iterator[Refusal]:
    for names, accepted, advice in rules:
        for name in names:
            value = settings(name)
            if value is not None and value not in accepted:
                yield Refusal(name, value, advice)
