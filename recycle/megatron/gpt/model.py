"""The model provider: a GPT of Megatron's own layers or of Transformer Engine's, cut into stages."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec as engine
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from recycle.megatron.shared.delayed_weights import delay_weight_gradients
from recycle.megatron.shared.norms import take_parts_of_sequences
from recycle.megatron.shared.weight_queue import offer_hooks
from recycle.runtime.errors import RunError
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.step.loss_scale import ScaleRule
from recycle.runtime.step.optimizers import Decay, Kind, RateSchedule, make_optimizer

Count = Annotated[int, msgspec.Meta(ge=1)]


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a GPT, and how it is trained.

    Attributes:
        layers: transformer layers in the whole model.
        hidden: width.
        heads: attention heads.
        sequence: tokens in a sample.
        vocabulary: different tokens.
        micro_batch_size: samples in a micro-batch.
        tied: whether the language-model head is the embedding.
        dropout: share of activations and of attention that is dropped.
        seed: of parameters, data and dropout.
        optimizer: what steps.
        learning_rate: after the warm-up.
        least_rate: the learning rate when the decay is over.
        warm_up: steps in which the learning rate rises from zero.
        decay: how it falls after the warm-up.
        decay_steps: the step after which it has fallen; it must be greater than the warm-up if the rate falls.
        momentum: of SGD.
        weight_decay: of matrices; norms and biases do not decay.
        clip: the largest norm of the whole gradient; none by default.
        exact: whether sums of gradients have the same bits whichever servers live.
        bf16: whether the model computes in bfloat16; gradients are added up and parameters stepped in float32.
        fp16: the same in half precision, with a dynamic loss scale.
        initial_loss_scale: the loss scale of the first iteration.
        min_loss_scale: below which it does not fall.
        loss_scale_window: after so many iterations in a row without overflow it is doubled.
        hysteresis: with how many overflows it is halved for the first time after it was doubled.
        transformer_engine: whether layers are Transformer Engine's, which need a GPU, and leave their weight gradients
            for W by their own means.
        per_token_loss: whether every token of the batch counts the same; otherwise every micro-batch does.
        tensor_parallel: ranks of a server, over which every layer is split.
        sequence_parallel: whether these divide sequences among them where they do not divide layers.
        distributed_optimizer: whether each peer of a stage holds some shards of the optimizer's state, and steps those.
    """

    layers: Count = 4
    hidden: Count = 64
    heads: Count = 4
    sequence: Count = 64
    vocabulary: Count = 256
    micro_batch_size: Count = 4
    tied: bool = False
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    seed: int = 0
    optimizer: Kind = "adamw"
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] = 1e-3
    least_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 0
    decay: Decay = "constant"
    decay_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    clip: Annotated[float, msgspec.Meta(gt=0)] | None = None
    bf16: bool = False
    fp16: bool = False
    initial_loss_scale: Annotated[float, msgspec.Meta(ge=1)] = ScaleRule().initial
    min_loss_scale: Annotated[float, msgspec.Meta(ge=1)] = ScaleRule().least
    loss_scale_window: Count = ScaleRule().window
    hysteresis: Count = ScaleRule().hysteresis
    transformer_engine: bool = False
    per_token_loss: bool = False
    exact: bool = False
    tensor_parallel: Count = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False

    @property
    def schedule(self) -> RateSchedule:
        """The learning rate by the number of steps."""
        return RateSchedule(self.learning_rate, self.least_rate, self.warm_up, self.decay_steps, self.decay)

    @property
    def precision(self) -> torch.dtype:
        """What the model computes in."""
        if self.fp16:
            return torch.float16
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def scale_rule(self) -> ScaleRule | None:
        """How the loss scale changes; None where the loss is not scaled."""
        if not self.fp16:
            return None
        return ScaleRule(self.initial_loss_scale, self.min_loss_scale, self.loss_scale_window, self.hysteresis)

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
    if options.layers % depth:
        raise RunError(f"layers is {options.layers}: {depth} stages need a multiple of {depth}")
    if options.hidden % options.heads or options.heads % options.tensor_parallel:
        raise RunError(
            f"heads is {options.heads}: it must divide hidden ({options.hidden}) and be a multiple of the "
            f"tensor-parallel size ({options.tensor_parallel})"
        )
    if options.sequence_parallel and options.tensor_parallel == 1:
        raise RunError(
            "sequence_parallel is on: it is for servers of several ranks; raise tensor_parallel, or turn it off"
        )
    if options.sequence_parallel and options.sequence % options.tensor_parallel:
        raise RunError(
            f"sequence is {options.sequence}: with sequence_parallel it must be a multiple of the tensor-parallel "
            f"size ({options.tensor_parallel})"
        )
    if options.decay != "constant" and options.decay_steps <= options.warm_up:
        raise RunError(
            f"decay_steps is {options.decay_steps}: a {options.decay} decay ends after the warm-up, which takes "
            f"{options.warm_up} steps"
        )
    if options.fp16 and options.bf16:
        raise RunError("fp16 and bf16 are both on: a model computes in one of them; turn one off")
    if options.fp16 and options.initial_loss_scale < options.min_loss_scale:
        raise RunError(
            f"initial_loss_scale is {options.initial_loss_scale:g}: the loss scale begins at no less than "
            f"min_loss_scale, which is {options.min_loss_scale:g}"
        )
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
        "fp16": options.fp16,
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
    config = TransformerConfig(**(settings | changes))
    if options.transformer_engine:
        delay_weight_gradients(config)
    return config


def build_stage(options: ModelOptions, config: Any, stage: int, depth: int, groups: Any) -> torch.nn.Module:
    """The layers of one stage, with the parameters that every server of that stage starts from."""
    if config.sequence_parallel:
        take_parts_of_sequences()
    with seeded(seed_of(options.seed, MicroBatch(-1, 0, 0), stage)):
        model: torch.nn.Module = GPTModel(
            config=config,
            transformer_layer_spec=engine() if options.transformer_engine else get_gpt_layer_local_spec(),
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
