"""The model provider: a GPT of Megatron's own layers, cut into stages."""

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from recycle.megatron.shared.norms import take_parts_of_sequences
from recycle.megatron.shared.weight_queue import offer_hooks
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.model_keys import ModelKeys
from recycle.runtime.step.optimizers import RateSchedule, make_optimizer


class ModelOptions(ModelKeys, frozen=True, forbid_unknown_fields=True):
    """The size of a GPT, and how it is trained."""

    @property
    def schedule(self) -> RateSchedule:
        """The learning rate by the number of steps."""
        return RateSchedule(self.learning_rate, self.least_rate, self.warm_up, self.decay_steps, self.decay)

    @property
    def precision(self) -> torch.dtype:
        """What the model computes in."""
        return torch.bfloat16 if self.bf16 else torch.float32

    def make_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of some parameters."""
        return make_optimizer(self.optimizer, parameters, self.learning_rate, self.weight_decay, self.momentum)


def transformer_config(options: ModelOptions, depth: int, **changes: Any) -> Any:
    """Megatron's configuration of a model cut into ``depth`` stages, without anything that needs CUDA.

    Args:
        options: the model.
        depth: P, or how many chunks there are.
        changes: other settings of Megatron's.

    Raises:
        RunError: the layers, heads or sequences cannot be cut so.
    """
    options.require_cut(depth)
    settings = {
        "num_layers": options.layers,
        "hidden_size": options.hidden,
        "num_attention_heads": options.heads,
        "hidden_dropout": options.dropout,
        "attention_dropout": options.dropout,
        "pipeline_model_parallel_size": depth,
        "tensor_model_parallel_size": options.tensor_parallel,
        "sequence_parallel": options.sequence_parallel,
        "bf16": options.bf16,
        "params_dtype": options.precision,
        "pipeline_dtype": options.precision,
        "calculate_per_token_loss": options.per_token_loss,
        "use_cpu_initialization": True,
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "batch_p2p_comm": False,
        "deallocate_pipeline_outputs": True,
    }
    return TransformerConfig(**(settings | changes))


def build_stage(options: ModelOptions, config: Any, stage: int, depth: int, groups: Any) -> torch.nn.Module:
    """The layers of one stage, with the parameters that every server of that stage starts from."""
    if config.sequence_parallel:
        take_parts_of_sequences()
    with seeded(seed_of(options.seed, MicroBatch(-1, 0, 0), stage)):
        model: torch.nn.Module = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(),
            vocab_size=options.vocabulary,
            max_sequence_length=options.sequence,
            pre_process=stage == 0,
            post_process=stage == depth - 1,
            share_embeddings_and_output_weights=options.tied,
            position_embedding_type="learned_absolute",
            pg_collection=groups,
        )
    offer_hooks(model)
    return model if options.precision is torch.float32 else Float16Module(config, model)
