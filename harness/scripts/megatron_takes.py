"""Says of command lines whether Megatron takes them, as far as that shows on one rank of each stage.

It reads a JSON list of pairs, a number of ranks and arguments, and prints a list of reasons; where Megatron takes a
command line, its reason is empty. Megatron validates the arguments, makes groups over a transport that sends nothing,
builds the model and runs its forward pass.
"""

import argparse
import contextlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from recycle.megatron.flag.device.cpu_training import train_on_cpu

VOCABULARY = 96
"""It divides among all ranks: Megatron fills it up."""


def require_taken(parser: argparse.ArgumentParser, ranks: int, words: list[str]) -> None:
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import _build_num_microbatches_calculator
    from megatron.training import arguments

    settings = parser.parse_args(words)
    settings.rank, settings.world_size = 0, ranks
    arguments.validate_args(settings)
    config = arguments.core_transformer_config_from_args(settings)
    sizes = settings.global_batch_size, settings.micro_batch_size, settings.data_parallel_size
    _build_num_microbatches_calculator(0, settings.rampup_batch_size, *sizes, False)
    if settings.context_parallel_size > 1 or getattr(settings, "hybrid_layer_pattern", None):
        # Its layers need CUDA.
        return
    built = 0
    for stage in range(settings.pipeline_model_parallel_size):
        rank = stage * (ranks // settings.pipeline_model_parallel_size)
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        try:
            built += layers_of_stage(settings, config)
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()
    assert built == settings.num_layers, f"{built} of {settings.num_layers} layers are built"


def layers_of_stage(settings: Any, config: Any) -> int:
    """Build a rank's part of the model and call it; gives its number of layers."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    virtual = config.virtual_pipeline_model_parallel_size
    parallel_state.initialize_model_parallel(
        settings.tensor_model_parallel_size,
        settings.pipeline_model_parallel_size,
        virtual,
        context_parallel_size=settings.context_parallel_size,
        expert_model_parallel_size=settings.expert_model_parallel_size,
        expert_tensor_parallel_size=settings.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1)
    found = 0
    for chunk in range(virtual or 1):
        place = chunk if virtual else None
        first, last = (
            getattr(parallel_state, f"is_pipeline_{end}_stage")(ignore_virtual=False, vp_stage=place)
            for end in ("first", "last")
        )
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=place)
        model = GPTModel(
            config,
            spec,
            VOCABULARY,
            settings.max_position_embeddings,
            pre_process=first,
            post_process=last,
            vp_stage=place,
        )
        found += len(model.decoder.layers)
        call(model, settings, first)
    return found


def call(model: Any, settings: Any, first: bool) -> None:
    length = settings.seq_length // settings.context_parallel_size
    tokens = torch.zeros(settings.micro_batch_size, length, dtype=torch.long)
    if not first:
        part = settings.tensor_model_parallel_size if settings.sequence_parallel else 1
        model.set_input_tensor(torch.zeros(length // part, settings.micro_batch_size, settings.hidden_size))
    mask = torch.zeros(1, 1, length, length, dtype=torch.bool)
    model(tokens, tokens, mask, labels=tokens)


def reason(parser: argparse.ArgumentParser, ranks: int, words: list[str]) -> str:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            require_taken(parser, ranks, words)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno}: {last.line})"
    return ""


def main() -> None:
    train_on_cpu()
    from megatron.training.arguments import add_megatron_arguments

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    warnings.simplefilter("ignore")
    parser = add_megatron_arguments(argparse.ArgumentParser(exit_on_error=False))
    reasons = [reason(parser, ranks, words) for ranks, words in json.load(sys.stdin)]
    sys.stdout.write(f"{json.dumps(reasons)}\n")


if __name__ == "__main__":
    main()
