"""The keys of a model file, which are judged without torch, which takes seconds to import."""

from typing import Annotated, Literal

import msgspec

from recycle.runtime.errors import RunError

Kind = Literal["adamw", "sgd"]
Decay = Literal["constant", "linear", "cosine"]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ModelKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    per_token_loss: bool = False
    exact: bool = False
    tensor_parallel: Count = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False

    def require_cut(self, depth: int) -> None:
        """Refuse what does not go together, and stages that the model cannot be cut into.

        Args:
            depth: P, or how many chunks there are.

        Raises:
            RunError: the layers, heads or sequences cannot be cut so.
        """
        if self.layers % depth:
            raise RunError(f"layers is {self.layers}: {depth} stages need a multiple of {depth}")
        if self.hidden % self.heads or self.heads % self.tensor_parallel:
            raise RunError(
                f"heads is {self.heads}: it must divide hidden ({self.hidden}) and be a multiple of the "
                f"tensor-parallel size ({self.tensor_parallel})"
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise RunError(
                "sequence_parallel is on: it is for servers of several ranks; raise tensor_parallel, or turn it off"
            )
        if self.sequence_parallel and self.sequence % self.tensor_parallel:
            raise RunError(
                f"sequence is {self.sequence}: with sequence_parallel it must be a multiple of the tensor-parallel "
                f"size ({self.tensor_parallel})"
            )
        if self.decay != "constant" and self.decay_steps <= self.warm_up:
            raise RunError(
                f"decay_steps is {self.decay_steps}: a {self.decay} decay ends after the warm-up, which takes "
                f"{self.warm_up} steps"
            )
