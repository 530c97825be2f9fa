"""What of a Megatron job has not run on a GPU here, by what docs/internals/gpu.md reports."""

from collections.abc import Iterator

from recycle.megatron.flag.command.command_line import CommandLine

TRIED = "one H100 has run Megatron's pretrain_gpt.py over gloo, 4 ranks, one of them killed"


def untried_on_gpus(line: CommandLine) -> Iterator[str]:
    """What the job asks for that no GPU has run; all of it has run on CPUs but for what ``read_only`` names."""
    ranks = line.server_ranks
    if line.setting("distributed_backend") == "nccl":
        yield "NCCL between its servers"
    if line.ranks > 1:
        yield "ranks on GPUs of their own"
    if line.ranks > (line.ranks_per_host or line.ranks):
        yield "several hosts"
    if line.setting("transformer_impl") == "transformer_engine":
        yield "Transformer Engine's layers"
    if ranks.tensor > 1:
        yield "tensor parallelism"
    if ranks.pipelines > 1:
        yield "experts divided among ranks"
    if line.shape.virtual > 1:
        yield "virtual stages"
    if line.setting("use_distributed_optimizer"):
        yield "the distributed optimizer"
    if line.flags.redundancy is not None:
        yield "the state in memory"
    if line.flags.staggered or line.flags.exact:
        yield "stages that are stepped by recycle"
