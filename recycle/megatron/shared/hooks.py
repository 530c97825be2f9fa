"""The functions of Megatron's that are replaced or relied on, and with which parameters: one table for all releases."""

from collections.abc import Mapping
from typing import NamedTuple

TRAINING = "megatron.training.training"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"
DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer"


class Hook(NamedTuple):
    """A function of Megatron's.

    Attributes:
        module: where it is.
        name: what it is called there.
        parameters: the names of its parameters; those behind a * can only be given by name.
    """

    module: str
    name: str
    parameters: str


OF_SCHEDULE = (
    "*, forward_step_func, data_iterator, model, num_microbatches, seq_length, micro_batch_size, decoder_seq_length, "
    "forward_only, collect_non_loss_data, first_val_step, adjust_tensor_shapes_fn, p2p_communicator, pg_collection, "
    "force_all_reduce"
)
"""The parameters of Megatron's schedules."""

EXECUTION = (
    # What a plan takes the place of, and what evaluates where all servers live as long as the run.
    Hook(SCHEDULES, "forward_backward_pipelining_without_interleaving", OF_SCHEDULE),
    Hook(SCHEDULES, "forward_backward_no_pipelining", OF_SCHEDULE),
    # Called for every micro-batch.
    Hook(
        SCHEDULES,
        "forward_step",
        "forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config, "
        "cp_group_size, collect_non_loss_data, checkpoint_activations_microbatch, is_first_microbatch, "
        "current_microbatch, vp_stage, is_last_stage",
    ),
    Hook(SCHEDULES, "custom_backward", "output, grad_output"),
    Hook(SCHEDULES, "deallocate_output_tensor", "out, deallocate_pipeline_outputs"),
    Hook(
        "megatron.core.tensor_parallel.random",
        "model_parallel_cuda_manual_seed",
        "seed, te_rng_tracker, inference_rng_tracker, use_cudagraphable_rng, tp_rank, ep_rank, etp_rank, "
        "force_reset_rng",
    ),
    # Replaced to split the backward pass.
    Hook(
        "megatron.core.tensor_parallel.layers",
        "LinearWithGradAccumulationAndAsyncCommunication.backward",
        "ctx, grad_output",
    ),
    Hook(
        "megatron.core.tensor_parallel.layers",
        "prepare_input_tensors_for_wgrad_compute",
        "grad_output, all_gathered_input",
    ),
    # What ends an iteration.
    Hook(
        "megatron.core.distributed.finalize_model_grads",
        "_allreduce_non_tensor_model_parallel_grads",
        "model, config, tp_group",
    ),
    Hook(
        "megatron.core.distributed.finalize_model_grads",
        "finalize_model_grads",
        "model, num_tokens, pg_collection, force_all_reduce",
    ),
    # What a distributed optimizer of a shard is made, stepped and written with.
    Hook(
        DISTRIBUTED,
        "DistributedOptimizer.__init__",
        "self, optimizer, config, grad_scaler, init_state_fn, model_chunks, per_model_buffers, data_parallel_group, "
        "data_parallel_group_gloo, data_parallel_group_idx, distributed_optimizer_instance_id",
    ),
    Hook(DISTRIBUTED, "DistributedOptimizer._copy_model_grads_to_main_grads", "self"),
    Hook(DISTRIBUTED, "DistributedOptimizer._copy_main_params_to_model_params", "self"),
    Hook(DISTRIBUTED, "DistributedOptimizer._get_main_param_and_optimizer_states", "self, model_param"),
    Hook(
        DISTRIBUTED,
        "DistributedOptimizer.get_parameter_state_dp_zero",
        "self, use_gloo_comm, empty_data, return_on_all_ranks",
    ),
    Hook(
        DISTRIBUTED,
        "DistributedOptimizer.sharded_state_dict",
        "self, model_sharded_state_dict, is_loading, sharding_type, metadata",
    ),
    Hook(
        "megatron.core.optimizer.clip_grads",
        "clip_grad_by_total_norm_fp32",
        "parameters, max_norm, total_norm, use_decoupled_grad",
    ),
)

TRAINER = (
    # Replaced: the flags are added to Megatron's.
    Hook("megatron.training.initialize", "parse_args", "extra_args_provider, ignore_unknown_args"),
    # Replaced: the plan is chosen when it returns.
    Hook(
        TRAINING,
        "initialize_megatron",
        "extra_args_provider, args_defaults, ignore_unknown_args, allow_no_cuda, skip_mpu_initialization, "
        "get_embedding_ranks, get_position_embedding_ranks, parsed_args, store",
    ),
    # Replaced: it gives the schedule that runs the plan.
    Hook(TRAINING, "get_forward_backward_func", "pp_size, vp_size"),
    # Replaced: the loaders are kept, to read the data of other pipelines with them.
    Hook(TRAINING, "build_train_valid_test_data_loaders", "build_train_valid_test_datasets_provider"),
    # Replaced: each iterator is known with the loader that it reads.
    Hook(TRAINING, "build_train_valid_test_data_iterators", "build_train_valid_test_datasets_provider"),
    # Calls that schedule; replaced where a run is recorded, and what follows it as well.
    Hook(
        TRAINING,
        "train_step",
        "forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config, forward_backward_func, "
        "iteration",
    ),
    Hook(
        TRAINING,
        "evaluate",
        "forward_step_func, data_iterator, model, process_non_loss_data_func, config, verbose, non_loss_data_func, "
        "eval_iters",
    ),
    # Copied for each other pipeline, whose number its attribute data_parallel_rank is.
    Hook(
        "megatron.training.datasets.data_samplers",
        "MegatronPretrainingSampler.__init__",
        "self, total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last",
    ),
    Hook(
        "megatron.training.datasets.data_samplers",
        "MegatronPretrainingRandomSampler.__init__",
        "self, dataset, total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, "
        "data_sharding",
    ),
    Hook("megatron.training.global_vars", "get_args", ""),
    # Replaced where a run survives failures: the living save, again where one of them died meanwhile.
    Hook(
        TRAINING,
        "save_checkpoint",
        "iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, "
        "checkpointing_context, pipeline_rank, expert_rank, tensor_rank, pipeline_parallel, expert_parallel, "
        "non_persistent_ckpt, train_data_iterator, preprocess_common_state_dict_fn, release, tp_group, pp_group, "
        "dp_cp_group",
    ),
    Hook(
        "megatron.training.checkpointing",
        "get_checkpoint_name",
        "checkpoints_path, iteration, release, pipeline_parallel, tensor_rank, pipeline_rank, expert_parallel, "
        "expert_rank, return_base_dir, basename",
    ),
    # Replaced there: who lives speaks and writes for who is dead.
    Hook(TRAINING, "print_rank_last", "message"),
    Hook("megatron.training.utils", "print_rank_last", "message"),
    Hook("megatron.core.parallel_state", "get_data_parallel_rank", "with_context_parallel, partial_data_parallel"),
    Hook("megatron.core.parallel_state", "get_expert_data_parallel_rank", "partial_expert_data_parallel"),
    # Read there: what layers with experts report beside the loss.
    Hook("megatron.core.transformer.moe.moe_utils", "get_moe_layer_wise_logging_tracker", ""),
    # Called there, before a schedule is done again.
    Hook("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel.zero_grad_buffer", "self"),
    # Replaced there, for servers that come back: what they take over is known, and they take it over before they train.
    Hook(TRAINING, "setup_model_and_optimizer", "model_provider_func, model_type, checkpointing_context"),
    Hook(
        TRAINING,
        "training_log",
        "loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report_memory_flag, skipped_iter, "
        "grad_norm, params_norm, num_zeros_in_grad, max_attention_logit, pg_collection, is_first_iteration",
    ),
    Hook(
        TRAINING,
        "train",
        "forward_step_func, model, optimizer, opt_param_scheduler, train_data_iterator, valid_data_iterator, "
        "process_non_loss_data_func, config, checkpointing_context, non_loss_data_func, inference_model",
    ),
    Hook(TRAINING, "num_floating_point_operations", "args, batch_size"),
    # Called there, where a rank that comes back begins to train: how large the batch is by now.
    Hook(
        "megatron.core.num_microbatches_calculator",
        "update_num_microbatches",
        "consumed_samples, consistency_check, verbose",
    ),
    # Replaced there, for checkpoints that nobody has planned, and what makes them.
    Hook(
        TRAINING,
        "checkpoint_and_decide_exit",
        "model, optimizer, opt_param_scheduler, iteration, num_floating_point_operations_so_far, "
        "checkpointing_context, train_data_iterator",
    ),
    Hook(
        TRAINING,
        "save_checkpoint_and_time",
        "iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, "
        "checkpointing_context, non_persistent_ckpt, train_data_iterator",
    ),
    # Replaced where a run survives failures: the optimizer's step, and what stages ask each other after it.
    Hook(TRAINING, "logical_and_across_model_parallel_group", "input"),
    Hook(TRAINING, "reduce_max_stat_across_model_parallel_group", "stat"),
    Hook("megatron.core.optimizer.optimizer", "MegatronOptimizer.step", "self"),
    # Replaced: what it asks all ranks is known to each.
    Hook("megatron.core.rerun_state_machine", "RerunStateMachine._reduce_any", "self, value"),
    # Called there: iterations are not run again to compare their results.
    Hook("megatron.core.rerun_state_machine", "get_rerun_state_machine", ""),
    Hook("megatron.core.rerun_state_machine", "RerunStateMachine.set_mode", "self, mode"),
)


class MegatronRelease(NamedTuple):
    """A release of Megatron.

    Attributes:
        hooks: what is replaced or relied on in it.
        python: the oldest one that has all names which its training code imports.
    """

    hooks: tuple[Hook, ...]
    python: tuple[int, int] = (3, 11)


def _with(hooks: tuple[Hook, ...], *other: Hook, **more: str) -> tuple[Hook, ...]:
    """Hooks of which some are different.

    Args:
        hooks: these.
        other: hooks that are new, or take the place of the one that has their name.
        more: by the name of a hook, the parameters that it has behind those from before.
    """
    names = {each.name for each in other}
    kept = [each for each in hooks if each.name not in names]
    for place, (module, name, parameters) in enumerate(kept):
        if name in more:
            kept[place] = Hook(module, name, f"{parameters}, {more[name]}")
    return (*kept, *other)


SINCE_0_16 = EXECUTION + TRAINER

SINCE_0_18 = _with(
    tuple(each for each in SINCE_0_16 if each.name != "get_moe_layer_wise_logging_tracker"),
    # Scripts parse the command line themselves, before they come to it.
    Hook("megatron.training.arguments", "parse_args", "extra_args_provider, ignore_unknown_args"),
    Hook(
        TRAINING,
        "initialize_megatron",
        "allow_no_cuda, skip_mpu_initialization, get_embedding_ranks, get_position_embedding_ranks, store",
    ),
    # Replaced: lengths of sequences are counted where they are computed, which may be anywhere.
    Hook(TRAINING, "consume_seqlen_stats_in_iteration", ""),
    # Read where a run survives failures: what layers with experts report beside the loss.
    Hook("megatron.core.transformer.moe.moe_logging", "get_moe_metrics_tracker", ""),
    Hook(
        "megatron.core.transformer.moe.moe_logging",
        "MoEMetricsTracker.ensure_initialized",
        "self, name, num_layers, device",
    ),
    training_log="seqlen_squared_sum_in_batch, total_real_tokens_in_batch",
    num_floating_point_operations="seqlen_squared_sum_in_batch, total_real_tokens_in_batch",
)

SINCE_0_19 = _with(
    SINCE_0_18,
    Hook(
        "megatron.core.parallel_state",
        "get_data_parallel_rank",
        "with_context_parallel, with_gtp_remat, partial_data_parallel",
    ),
    Hook(
        "megatron.core.parallel_state", "get_expert_data_parallel_rank", "with_gtp_remat, partial_expert_data_parallel"
    ),
    Hook(
        TRAINING,
        "setup_model_and_optimizer",
        "model_type, model_provider_func, checkpointing_context, *, cfg_container, pg_collection",
    ),
    # Replaced: it asks all ranks once.
    Hook("megatron.core.optimizer.optimizer", "MegatronOptimizer.has_grad_norm_group", "self, grad_norm_group"),
    initialize_megatron="skip_model_parallel_init, seed_pp_group, seed_dp_group, seed_tp_group, seed_ep_group, "
    "seed_etp_group, skip_random_seed",
    get_forward_backward_func="schedule_pg_collection",
    train_step="pg_collection, p2p_communicator",
    evaluate="pg_collection, p2p_communicator",
    save_checkpoint="dp_group, expt_dp_group, rng_state_key_prefix",
    train="p2p_communicator, pg_collection",
    logical_and_across_model_parallel_group="group",
    reduce_max_stat_across_model_parallel_group="group",
)

PYTHON = (3, 12)

RELEASES: Mapping[str, MegatronRelease] = {
    "0.16.1": MegatronRelease(SINCE_0_16),
    "0.17.1": MegatronRelease(SINCE_0_16),
    "0.18.0": MegatronRelease(SINCE_0_18, PYTHON),
    "0.18.2": MegatronRelease(SINCE_0_18, PYTHON),
    "0.19.0": MegatronRelease(SINCE_0_19, PYTHON),
    # What the source tree of tag core_v0.19.0 calls itself.
    "0.19.1": MegatronRelease(SINCE_0_19, PYTHON),
    "0.19.2": MegatronRelease(SINCE_0_19, PYTHON),
}
