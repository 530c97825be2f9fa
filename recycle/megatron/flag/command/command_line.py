"""A Megatron command line, read without Megatron: what decides the shape of the job, and what a plan depends on."""

import argparse
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from recycle.errors import UserError
from recycle.megatron.flag.command.exit_signal import exit_signal
from recycle.megatron.flag.command.flags import Flags, find_flags, parse_known
from recycle.megatron.flag.command.megatron_options import leave_out, megatron_parser, option_named, options_of
from recycle.megatron.flag.command.on_cpu import ON_CPU
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.server_ranks import PIPELINES_LAST, ServerRanks, unprotected
from recycle.megatron.flag.command.sizes import require_sizes, take_pattern, virtual_stages

RAMP_UP = "--rampup-batch-size"
YAML = "--yaml-cfg"


class CommandLine(NamedTuple):
    """What was read.

    Attributes:
        settings: Megatron's, by their names.
        flags: recycle's.
        shape: of the job.
        ranks: how many there are in all.
        server_ranks: of each server.
        arguments: the script's, without recycle's flags.
        ranks_per_host: how many torchrun starts on each; None if that is not said.
        pipelines_last: the order of ranks; see ``servers_of``.
        left_out: options that change no result, and that the run goes without.
        growth: the numbers of micro-batches per pipeline that batches have which grow, rising; empty where they do not.
    """

    settings: argparse.Namespace
    flags: Flags
    shape: Shape
    ranks: int
    server_ranks: ServerRanks
    arguments: tuple[str, ...]
    ranks_per_host: int | None
    pipelines_last: bool
    left_out: tuple[str, ...] = ()
    growth: tuple[int, ...] = ()

    def setting(self, name: str) -> Any:
        """A setting's value; None if it is not one that is read."""
        return getattr(self.settings, name, None)

    @property
    def loses_shards(self) -> bool:
        """Whether a shard of a distributed optimizer is lost with the two servers that hold it.

        Shards that hosts keep in memory come back, if another host than the lost one has them.
        """
        kept = self.flags.keep_in_memory
        return bool(self.setting("use_distributed_optimizer")) and (kept is None or kept.spare == 0)

    def option(self, name: str) -> str:
        """What a setting is called on the command line, as it was typed there if it was."""
        options = options_of(name) or [option_named(name)]
        return next((each for each in options if each in self.arguments), options[0])


def require_command_line(words: Sequence[str]) -> None:
    """Check that Megatron takes its settings from the command line.

    Raises:
        UserError: it takes them from somewhere else, recycle's flags among them.
    """
    if any(word.partition("=")[0] == YAML for word in words):
        raise UserError(
            f"{YAML}: Megatron takes all settings from that file, and --pipeline-schedule cannot be there: give them "
            "on the command line"
        )


def read_command_line(words: Sequence[str], ranks: int | None) -> CommandLine:
    """Read a whole command line: torchrun and its options if they are there, the script, its arguments.

    Args:
        words: as the shell gives them.
        ranks: how many processes there are in all; None to take torchrun's options for it.

    Raises:
        UserError: a value that is needed is missing or wrong.
        JobError: the job is too large to be planned.
    """
    place = script_place(words)
    first = 0 if place is None else place + 1
    return read_arguments(words[first:], ranks, words[:first])


def script_place(words: Sequence[str]) -> int | None:
    """Where a command line names the script; None if it is a script's arguments alone, or names none."""
    if words and words[0].startswith("-") and words[0] != ON_CPU:
        return None
    return next((place for place, word in enumerate(words) if word.endswith(".py")), None)


def read_arguments(arguments: Sequence[str], ranks: int | None, before: Sequence[str] = ()) -> CommandLine:
    """Read the arguments of a script, of which any may be called like one.

    Args:
        arguments: as the shell gives them.
        ranks: how many processes there are in all; None to take torchrun's options for it.
        before: what comes before them on the command line.

    Raises:
        UserError: a value that is needed is missing or wrong.
    """
    require_command_line(arguments)
    exit_signal(arguments)
    kept, left_out = leave_out(arguments)
    flags, rest = find_flags(kept)
    settings, _ = parse_known(_parser(), [*before, *rest])
    require_sizes(settings)
    take_pattern(settings)
    if settings.use_mp_args_from_checkpoint_args:
        raise UserError(
            "--use-mp-args-from-checkpoint-args: the number of stages is not on the command line; give it there, and "
            "use --use-checkpoint-args alone"
        )
    total = ranks if ranks is not None else _torchrun_ranks(settings)
    pipelines_last = PIPELINES_LAST in rest
    if isinstance(settings.moe_router_load_balancing_type, list):
        settings.moe_router_load_balancing_type = " ".join(settings.moe_router_load_balancing_type)
    if settings.expert_tensor_parallel_size is None:
        settings.expert_tensor_parallel_size = settings.tensor_model_parallel_size
    server_ranks = ServerRanks.of(lambda name: getattr(settings, name))
    servers = _servers(settings, total, server_ranks, pipelines_last)
    settings.virtual_pipeline_model_parallel_size = virtual_stages(settings)
    micro_batches = _micro_batches(settings, servers * server_ranks.pipelines)
    virtual = settings.virtual_pipeline_model_parallel_size or 1
    shape = Shape(servers, settings.pipeline_model_parallel_size, micro_batches, virtual)
    shape.require_size()
    per_host = settings.nproc_per_node
    return CommandLine(
        settings,
        flags,
        shape,
        total,
        server_ranks,
        tuple(rest),
        int(per_host) if per_host is not None and per_host.isdecimal() else None,
        pipelines_last,
        () if unprotected(shape) else tuple(left_out),
        _growth(settings, servers * server_ranks.pipelines),
    )


@cache
def _parser() -> argparse.ArgumentParser:
    """Of Megatron's options, and of torchrun's by which it is known how many ranks there are.

    To make it takes longer than to parse.
    """
    parser = megatron_parser()
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node")
    return parser


def _torchrun_ranks(launch: argparse.Namespace) -> int:
    if launch.nproc_per_node is None:
        raise UserError("how many ranks there are is not said: give --ranks, or the whole torchrun command")
    try:
        return int(launch.nnodes) * int(launch.nproc_per_node)
    except ValueError as error:
        raise UserError(
            f"--nnodes {launch.nnodes} --nproc-per-node {launch.nproc_per_node} is no number of ranks: give --ranks"
        ) from error


def _servers(settings: argparse.Namespace, total: int, ranks: ServerRanks, pipelines_last: bool) -> int:
    """How many servers a stage has."""
    in_pipeline = ranks.tensor * ranks.context
    per_pipeline = in_pipeline * settings.pipeline_model_parallel_size
    if total < per_pipeline or total % per_pipeline:
        raise UserError(
            f"{total} ranks are no multiple of {per_pipeline}, the tensor-parallel x context-parallel x "
            "pipeline-parallel size: change one of them"
        )
    per_server = ranks.size * settings.pipeline_model_parallel_size
    if total % per_server:
        raise UserError(
            f"{total} ranks are no multiple of {per_server}, the {ranks.size} that compute together with their experts "
            "x pipeline-parallel size: change one of them"
        )
    if pipelines_last and not ranks.take_pipelines_last(settings.pipeline_model_parallel_size):
        raise UserError(
            f"{PIPELINES_LAST}: Megatron takes it only if the expert-model-parallel x expert-tensor-parallel size "
            f"({ranks.experts}) is the tensor-parallel x context-parallel size ({in_pipeline}): leave it out, or "
            "change one of them"
        )
    return int(total // per_server)


def _micro_batches(settings: argparse.Namespace, pipelines: int) -> int:
    if settings.micro_batch_size is None:
        raise UserError("--micro-batch-size is missing: Megatron needs it, and so does a plan")
    at_once = settings.micro_batch_size * pipelines
    batch = settings.global_batch_size or at_once
    if batch % at_once:
        raise UserError(
            f"--global-batch-size {batch} is no multiple of {at_once}, the micro-batch size x pipelines: change one"
        )
    return int(batch // at_once)


def _growth(settings: argparse.Namespace, pipelines: int) -> tuple[int, ...]:
    """The numbers of micro-batches that grow with the batch; see Megatron's calculator of them."""
    if settings.rampup_batch_size is None:
        return ()
    start, step, _ = settings.rampup_batch_size
    at_once, whole = settings.micro_batch_size * pipelines, settings.global_batch_size
    if whole is None or min(start, step) < 1 or start > whole or (whole - start) % step:
        raise UserError(
            f"{RAMP_UP} {start} {step}: from {start} in steps of {step}, batches do not grow to --global-batch-size "
            f"{whole}: change one"
        )
    for batch in range(start, whole, step):
        if batch % at_once:
            raise UserError(
                f"{RAMP_UP} {start} {step}: a batch of {batch} is no multiple of {at_once}, the micro-batch size x "
                "pipelines: change one"
            )
    return tuple(batch // at_once for batch in range(start, whole + 1, step))
