"""A training script as Megatron's users have them: it knows nothing of recycle, and several releases of Megatron."""

import os
import time
from functools import partial
from inspect import signature
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core import utils as core_utils
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.training import arguments, get_args, get_timers, pretrain, utils
from megatron.training.arguments import core_transformer_config_from_args
from megatron.training.utils import get_blend_and_blend_per_split


class Tokenizer:
    """Tokens are bytes."""

    eod = bos = eos = 0
    pad = -1
    vocab_size = 256

    def __init__(self):
        self.unique_identifiers = {"class": "bytes"}


def model_provider(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None):
    args = get_args()
    return GPTModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=get_gpt_layer_local_spec(
            args.num_experts, qk_layernorm=args.qk_layernorm, normalization=args.normalization
        ),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        vp_stage=vp_stage,
        pg_collection=pg_collection,
    )


def on_an_end():
    return parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage()


def get_batch_on_this_tp_rank(data_iterator):
    if hasattr(utils, "get_batch_on_this_tp_rank"):
        return utils.get_batch_on_this_tp_rank(data_iterator)
    args = get_args()
    rank = parallel_state.get_tensor_model_parallel_rank()
    give = core_utils.get_batch_on_this_tp_rank
    (packed,) = {"is_sft", "has_cu_seqlens"} & signature(give).parameters.keys()
    return give(
        next(data_iterator) if rank == 0 else {},
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(),
        cp_size=1,
        tp_rank=rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(),
        is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(),
        **{packed: False},
    )


def get_batch(data_iterator):
    if not on_an_end():
        return None, None, None, None, None
    batch = get_batch_on_this_tp_rank(data_iterator)
    return [batch[name] for name in ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")]


def loss_func(loss_mask, output):
    mask = loss_mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    count = mask.sum().clone().detach().to(torch.int)
    return loss, count, {"lm loss": torch.cat([loss.clone().detach().view(1), count.view(1)])}


def wait_for_kills():
    """Before the last iteration, for as long as the file is there that KILLS names: ``harness/flag_runs.py`` kills."""
    args, kills = get_args(), os.environ.get("KILLS")
    while kills and args.curr_iteration + 1 == args.train_iters and Path(kills).exists():
        time.sleep(0.01)


def forward_step(data_iterator, model):
    wait_for_kills()
    timers = get_timers()
    timers("batch-generator", log_level=2).start()
    tokens, labels, loss_mask, attention_mask, position_ids = get_batch(data_iterator)
    timers("batch-generator").stop()
    output = model(tokens, position_ids, attention_mask, labels=labels)
    return output, partial(loss_func, loss_mask)


def datasets_provider(numbers, vp_stage=None):
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        path_to_cache=args.data_cache_path,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=True,
    )
    built = lambda: on_an_end() and parallel_state.get_tensor_model_parallel_rank() == 0  # noqa: E731
    dataset = MockGPTDataset if args.mock_data else GPTDataset
    return BlendedMegatronDatasetBuilder(dataset, numbers, built, config).build()


if __name__ == "__main__":
    datasets_provider.is_distributed = True
    parts = {
        "train_valid_test_dataset_provider": datasets_provider,
        "model_provider": model_provider,
        "model_type": ModelType.encoder_or_decoder,
        "forward_step_func": forward_step,
    }
    defaults = {"tokenizer_type": "NullTokenizer"}
    if hasattr(arguments, "parse_and_validate_args"):
        from megatron.training.argument_utils import pretrain_cfg_container_from_args

        pretrain(pretrain_cfg_container_from_args(arguments.parse_and_validate_args(args_defaults=defaults)), **parts)
    else:
        pretrain(**parts, args_defaults=defaults)
