"""What Megatron refuses because the sizes of a job do not divide its work, found without Megatron."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator

from recycle.errors import UserError
from recycle.megatron.flag.command.megatron_options import PATTERNS, VIRTUAL
from recycle.megatron.flag.command.refusals import Advice, Refusal, Settings
from recycle.wording import plural

EMBEDDING, DECODER, PREDICTION, LOSS = "E", "t", "m", "L"
LETTERS = {EMBEDDING: "embedding", DECODER: "layer", PREDICTION: "multi-token prediction", LOSS: "loss"}
REPEATED = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")
"""What is repeated: a part in parentheses, and a letter."""

MOST_LETTERS = 100_000
"""Of all stages together, and what divides them."""

AT_LEAST_ONE = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "num_layers", "micro_batch_size"),
    *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "global_batch_size"),
    *("num_attention_heads", "num_query_groups"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
)
"""Settings that are none, or above zero."""

ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def require_sizes(settings: argparse.Namespace) -> None:
    """Check that nothing is zero by which others are divided.

    Raises:
        UserError: something is.
    """
    for name in AT_LEAST_ONE:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give a number from 1")


def unfit(of: Settings) -> Iterator[Refusal]:
    """What does not fit; nothing if Megatron takes all.

    What is not on the command line fits: a checkpoint or the script may say it.

    Args:
        of: Megatron's settings.
    """
    if of("use_checkpoint_args"):
        return
    yield from _layers(of)
    yield from _heads(of)
    yield from _sequences(of)
    yield from _experts(of)
    if of("rampup_batch_size") is not None and of("train_iters") is not None:
        yield _refuse(of, "rampup_batch_size", "Megatron counts samples where batches grow", "give --train-samples")


def _refuse(of: Settings, name: str, reason: str, remedy: str) -> Refusal:
    return Refusal(name, of(name), Advice(reason, remedy))


def _layers(of: Settings) -> Iterator[Refusal]:
    """Those of each stage, and of each virtual one."""
    virtual, ends, counted = ([name for name in names if of(name)] for names in (VIRTUAL, ENDS, COUNTED))
    if patterns := [name for name in PATTERNS if of(name)]:
        number = segments(of(patterns[0]))
        for other in (*patterns[1:], *virtual, *counted, *(ends if number > 1 else ())):
            yield _refuse(of, other, "the pattern of a hybrid model says where each layer is", "leave it out")
        yield from _written(of, patterns[0], number) if number > 1 else _stages(of, ends, [])
    elif len(virtual) > 1:
        yield _refuse(
            of, virtual[1], "Megatron takes one option that divides layers among virtual stages", "leave it out"
        )
    elif "pipeline_model_parallel_layout" in virtual:
        for other in (*ends, *counted):
            yield _refuse(of, other, "a layout says itself where each layer is", "leave it out")
        yield from _layout(of)
    elif ends and counted:
        yield _refuse(of, counted[0], "the number of layers of an end is given as well", "leave it out")
    elif ends and VIRTUAL[0] in virtual:
        remedy = "give --num-virtual-stages-per-pipeline-rank"
        yield _refuse(of, VIRTUAL[0], "stages at the ends have another number of layers", remedy)
    elif of("num_layers") is not None:
        yield from _stages(of, ends, counted)


def _stages(of: Settings, ends: list[str], counted: list[str]) -> Iterator[Refusal]:
    """Where all stages have as many layers, but for the ends."""
    stages = of("pipeline_model_parallel_size")
    # Megatron counts the embedding, and the loss, as a layer where it is asked to.
    layers, middle = of("num_layers") + len(counted), stages - len(ends)
    left = layers - sum(of(name) for name in ends)
    among = f"{plural(left, 'layer')}{', those counted for the ends included,' if counted else ''}"
    among += f" beside those of the {'ends' if len(ends) > 1 else 'end'}" if ends else ""
    if middle < 0 or left < 0 or bool(middle) != bool(left) or (middle and left % middle):
        remedy = "change --num-layers, --pipeline-model-parallel-size, or the numbers of layers of the end stages"
        yield _refuse(of, "num_layers", f"{among} do not divide among {plural(max(0, middle), 'stage')}", remedy)
        return
    held = [of(name) for name in ends] + ([left // middle] if middle else [])
    per_chunk = of(VIRTUAL[0])
    for number in held:
        if per_chunk is not None and number % per_chunk:
            reason = f"the layers of a stage, {number}, do not divide into virtual stages of {per_chunk}"
            yield _refuse(of, VIRTUAL[0], reason, f"use a divisor of {number}")
            return
    virtual = held[0] // per_chunk if per_chunk is not None else of(VIRTUAL[1]) or 1
    for number in held:
        if number % virtual:
            reason = f"the layers of a stage, {number}, do not divide among {virtual} virtual stages"
            yield _refuse(of, VIRTUAL[1], reason, f"use a divisor of {number}")
            return
    yield from _interleaved(of, virtual)


def _interleaved(of: Settings, virtual: int) -> Iterator[Refusal]:
    """What virtual stages need of the real ones."""
    least = 2 if of("overlap_p2p_comm") else 3
    if virtual > 1 and of("pipeline_model_parallel_size") < least:
        remedy = f"use {least} stages or more, or leave virtual stages out"
        yield _refuse(of, "pipeline_model_parallel_size", "Megatron takes virtual stages from more stages on", remedy)


def _layout(of: Settings) -> Iterator[Refusal]:
    """Where each layer has its place."""
    name = "pipeline_model_parallel_layout"
    written = stages_of(of(name))
    order = "".join(written)
    if unknown := sorted(set(order) - set(LETTERS)):
        letters = ", ".join(f"{letter} ({meaning})" for letter, meaning in LETTERS.items())
        yield _refuse(of, name, f"{unknown[0]!r} is no layer", f"use {letters}")
        return
    number = Counter(order)
    if not (order.startswith(EMBEDDING) and order.endswith(LOSS) and number[EMBEDDING] == number[LOSS] == 1):
        yield _refuse(of, name, "it begins with the embedding and ends with the loss", f"write {EMBEDDING}...{LOSS}")
    layers = of("num_layers")
    if layers is not None and number[DECODER] != layers:
        reason = f"it has {plural(number[DECODER], 'layer')}, and --num-layers is {layers}"
        yield _refuse(of, name, reason, "change one of them")
    if number[PREDICTION] != (of("mtp_num_layers") or 0):
        yield _refuse(of, name, "it has other layers of multi-token prediction than --mtp-num-layers", "leave them out")
    yield from _written(of, name, len(written))


def _written(of: Settings, name: str, number: int) -> Iterator[Refusal]:
    """Where so many stages are written down, virtual ones too."""
    stages = of("pipeline_model_parallel_size")
    if number % stages:
        reason = f"its {plural(number, 'stage')} do not divide among {stages}"
        yield _refuse(of, name, reason, f"write a multiple of {stages}, divided by |")
    yield from _interleaved(of, number // stages)


def _divides(of: Settings, name: str, by: int, what: str) -> Iterator[Refusal]:
    number = of(name)
    if number is not None and number % by:
        yield _refuse(of, name, f"{number} is no multiple of {by}, {what}", "change one of them")


def _heads(of: Settings) -> Iterator[Refusal]:
    tensor, of_tensor = of("tensor_model_parallel_size"), "the tensor-parallel size"
    yield from _divides(of, "num_attention_heads", tensor, of_tensor)
    if of("kv_channels") is None:
        yield from _divides(of, "hidden_size", of("num_attention_heads") or 1, "the number of attention heads")
    groups = of("num_query_groups")
    if of("group_query_attention"):
        yield from _divides(of, "num_attention_heads", groups, "the number of query groups")
        if groups % tensor and tensor % groups:
            reason = f"neither of {groups} and {tensor}, {of_tensor}, is a multiple of the other"
            yield _refuse(of, "num_query_groups", reason, "change one of them")
    if not of("num_experts"):
        yield from _widths(of, "ffn_hidden_size", tensor, of_tensor)


def _widths(of: Settings, name: str, by: int, what: str) -> Iterator[Refusal]:
    """Those of the layers' inner part, which Megatron chooses where they are not given."""
    hidden = of("hidden_size")
    if of("ffn_hidden_size") is not None and of(name) is None:
        name = "ffn_hidden_size"
    if of(name) is not None:
        yield from _divides(of, name, by, what)
    elif hidden is not None:
        width = int(4 * hidden * 2 / 3 / 64) * 64 if of("swiglu") else 4 * hidden
        if width % by:
            reason = f"Megatron makes --ffn-hidden-size {width} of it, no multiple of {by}, {what}"
            yield _refuse(of, "hidden_size", reason, "give --ffn-hidden-size")


def _sequences(of: Settings) -> Iterator[Refusal]:
    context = of("context_parallel_size")
    if context > 1:
        yield from _divides(of, "seq_length", 2 * context, "twice the context-parallel size")
    if of("sequence_parallel"):
        among = context * of("tensor_model_parallel_size")
        yield from _divides(of, "seq_length", among, "the tensor-parallel x context-parallel size")


def _experts(of: Settings) -> Iterator[Refusal]:
    experts, ranks = of("num_experts") or None, of("expert_model_parallel_size")
    if experts is None:
        for name, is_given in (
            ("expert_model_parallel_size", ranks > 1),
            ("moe_ffn_hidden_size", of("moe_ffn_hidden_size") is not None),
        ):
            if is_given:
                yield _refuse(of, name, "there are no experts", "give --num-experts, or leave it out")
        return
    if of("tensor_model_parallel_size") > 1 and not of("sequence_parallel"):
        reason = "Megatron trains none with tensor parallelism alone"
        yield _refuse(of, "num_experts", reason, "give --sequence-parallel, or --tensor-model-parallel-size 1")
    yield from _divides(of, "num_experts", ranks, "the expert-parallel size")
    yield from _widths(of, "moe_ffn_hidden_size", of("expert_tensor_parallel_size"), "the expert-tensor-parallel size")


def take_pattern(settings: argparse.Namespace) -> None:
    """Set the numbers of layers that Megatron finds in the pattern of a hybrid model."""
    if pattern := settings.hybrid_layer_pattern or settings.hybrid_override_pattern:
        layers, *predictions = pattern.split("/")
        settings.num_layers = len(layers.replace("|", ""))
        if any(predictions):
            settings.mtp_num_layers = len(predictions)


def segments(pattern: str) -> int:
    """How many stages the pattern of a hybrid model has, virtual ones too; 1 where it does not divide layers."""
    return pattern.partition("/")[0].count("|") + 1


def virtual_stages(settings: argparse.Namespace) -> int | None:
    """How many virtual stages a stage has; None where nothing is said of them.

    Where layers do not divide, one of the numbers that they may have been meant to give.
    """
    stages: int = settings.pipeline_model_parallel_size
    if pattern := settings.hybrid_layer_pattern or settings.hybrid_override_pattern:
        return max(1, segments(pattern) // stages)
    if settings.pipeline_model_parallel_layout is not None:
        return max(1, len(stages_of(settings.pipeline_model_parallel_layout)) // stages)
    per_chunk: int | None = settings.num_layers_per_virtual_pipeline_stage
    if per_chunk is None:
        given: int | None = settings.num_virtual_stages_per_pipeline_rank
        return given
    if settings.num_layers is None:
        return 2
    layers: int = settings.num_layers + sum(bool(getattr(settings, name)) for name in COUNTED)
    return max(1, layers // (per_chunk * stages))


def stages_of(layout: str) -> list[str]:
    """The letters of each stage, virtual ones too, in the order of the layers.

    Raises:
        UserError: there are too many.
    """
    written = layout.replace(",", "")
    for repeated in REPEATED:
        written = re.sub(repeated, _repeated, written)
        if len(written) > MOST_LETTERS:
            raise _too_many(layout)
    return written.split("|")


def _repeated(found: re.Match[str]) -> str:
    part, times = found[1], found[2].lstrip("0")
    if len(times) > len(str(MOST_LETTERS)) or len(part) * int(times or 0) > MOST_LETTERS:
        raise _too_many(found[0])
    return part * int(times or 0)


def _too_many(layout: str) -> UserError:
    return UserError(
        f"--pipeline-model-parallel-layout {layout[:100]}: it has more than {MOST_LETTERS} layers; repeat less often"
    )
