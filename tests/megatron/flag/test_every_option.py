"""What Megatron can be told of sums of gradients, of single ranks, and of what comes every few iterations is judged.

Recycle makes these sums itself, has peers speak for dead ranks, and makes iterations again. So each option of these
three kinds is read by the code, has a rule, or is here with why it needs neither.
"""

import dataclasses
import re

import pytest
from megatron.core.distributed import DistributedDataParallelConfig

from harness.paths import ROOT
from recycle.megatron.flag.command.megatron_options import known_options

CODE = set(re.findall(r"\w+", "".join(each.read_text() for each in (ROOT / "recycle" / "megatron").rglob("*.py"))))
SINGLE = re.compile(r"-interval$|-ranks?\b")

NEEDS_NOTHING = {
    "adlr_autoresume_interval": "of an option that is refused",
    "check_weight_hash_across_dp_replicas_interval": "a peer has the same weights as the dead rank that it plays",
    "delta_offload_bytes_across_pp_ranks": "of activation offloading, which is refused",
    "eval_interval": "an evaluation that is broken off is made again",
    "exit_interval": "all servers end after the same iteration",
    "fault_injector_num_ranks": "its faults are failures like any other",
    "fault_injector_ranks": "its faults are failures like any other",
    "fp8_interval": "Transformer Engine ignores it",
    "indexer_log_interval": "of data for retrieval",
    "inference_logging_step_interval": "of inference",
    "inprocess_heartbeat_interval": "of an option that is refused",
    "inprocess_monitor_process_interval": "of an option that is refused",
    "inprocess_monitor_thread_interval": "of an option that is refused",
    "inprocess_progress_watchdog_interval": "of an option that is refused",
    "kv_lora_rank": "a size of a layer",
    "log_memory_interval": "each rank says how much memory it has taken itself",
    "manual_gc_interval": "each process collects its own garbage",
    "max_seqlen_per_dp_cp_rank": "of hybrid context parallelism, which is refused",
    "non_persistent_save_interval": "saved as any checkpoint",
    "offset_sampling_seed_by_dp_rank": "of inference",
    "q_lora_rank": "a size of a layer",
    "save_params_interval": "the first live peer writes them",
    "save_retain_interval": "older checkpoints are removed within a save",
    "train_sync_interval": "each rank waits for its own GPU",
}
"""By setting."""

DDP_NEEDS_NOTHING = {
    "align_param_gather": "recycle gathers parameters itself",
    "bucket_size": "buckets are summed as they are",
    "data_parallel_sharding_strategy": "of Megatron's FSDP, which is refused",
    "disable_symmetric_registration": "of NCCL's user buffers, which are refused",
    "fp4_param_gather": "FP4 is refused",
    "fsdp": "refused",
    "grad_reduce_in_fp32": "buffers are summed in the type that they have",
    "gradient_reduce_div_fusion": "of Megatron's FSDP, which is refused",
    "keep_fp8_transpose_cache": "of Megatron's FSDP, which is refused",
    "megatron_fsdp": "refused",
    "num_buckets": "buckets are summed as they are",
    "outer_dp_sharding_strategy": "of Megatron's FSDP, which is refused",
    "pad_buckets_for_high_nccl_busbw": "buckets are summed as they are",
    "preserve_fp32_weights": "of Megatron's FSDP, which is refused",
    "reuse_grad_buf_for_mxfp8_param_ag": "of parameters in eight bits, which are refused",
    "suggested_communication_unit_size": "of Megatron's FSDP, which is refused",
    "use_custom_fsdp": "of Megatron's FSDP, which is refused",
}
"""By setting of Megatron's DDP, or how several begin."""


def test_an_option_of_single_ranks_or_of_every_few_iterations_is_judged():
    settings = {option.setting for name, option in known_options().items() if SINGLE.search(name)}
    assert {"profile_ranks", "save_activations_interval"} <= settings
    assert sorted(settings - CODE - NEEDS_NOTHING.keys()) == []


@pytest.mark.filterwarnings("ignore")
def test_a_setting_of_the_sums_of_gradients_is_judged():
    settings = {each.name for each in dataclasses.fields(DistributedDataParallelConfig)}
    read = {each for each in settings if CODE & {each, f"ddp_{each}"}}
    assert "average_in_collective" in read
    assert sorted(each for each in settings - read if not each.startswith(tuple(DDP_NEEDS_NOTHING))) == []
