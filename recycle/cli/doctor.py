"""``recycle doctor``."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.job import Server
from recycle.megatron.flag.command_line import CommandLine, read_command_line
from recycle.megatron.flag.flags import owns_steps
from recycle.megatron.flag.planning import Source
from recycle.megatron.flag.refusals import not_own, refusals, unsplit
from recycle.plan.plan import Plan


class Price(NamedTuple):
    """What one dead server costs.

    Attributes:
        stage: of the server.
        period: time of an iteration with it dead.
        retention: the share of fault-free throughput that is kept.
    """

    stage: int
    period: int
    retention: float


@click.command(
    "doctor", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=True
)
@click.option(
    "--ranks", type=click.IntRange(1), help="The total number of processes, where the command line does not give it."
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(ranks: int | None, as_json: bool, words: Sequence[str]) -> None:
    """Check what --pipeline-schedule recycle would do for a Megatron job, whose command line is COMMAND.

    Reports what works, what is refused and why, the plan, and what the loss of a server would cost. Without a
    catalogue (--recycle-catalogue), F, I and W are taken to be equally long. Exits with status 1 if something is
    refused.

    \b
    recycle doctor torchrun --nproc-per-node 8 pretrain_gpt.py --pipeline-model-parallel-size 4 ...
    recycle doctor --ranks 64 pretrain_gpt.py --tensor-model-parallel-size 2 ...
    """
    line = read_command_line(words, ranks)
    refused = list(refusals(line.setting))
    if owns_steps(line.flags):
        refused += not_own(line.setting, line.flags.exact)
    fused = list(unsplit(line.setting))
    from recycle.planner.source import megatron_plan

    source = Source(line.flags, line.shape, fused, megatron_plan)
    with progress_line("planning"):
        whole = source.plan(())
        asked = source.plan(line.flags.dead)
        prices = [price(whole, source.plan([Server(0, stage)]), stage) for stage in price_list(line)]
    if as_json:
        print_json(
            {
                "shape": line.shape._asdict(),
                "ranks": line.ranks[1],
                "works": list(works(line)),
                "refused": refused,
                "fused": fused,
                "dead": [str(server) for server in asked.dead],
                "period": asked.period,
                "bound": asked.bound,
                "retention": whole.period / asked.period,
                "failures": [each._asdict() for each in prices],
            }
        )
    else:
        report(line, refused, fused, whole, asked, prices)
    sys.exit(1 if refused else 0)


def price_list(line: CommandLine) -> range:
    """The stages that can lose a server: all, where there is a peer to take over."""
    return range(line.shape.stages if line.shape.pipelines > 1 else 0)


def price(whole: Plan, plan: Plan, stage: int) -> Price:
    """What a plan costs against the one in which all servers are alive."""
    return Price(stage, plan.period, whole.period / plan.period)


def works(line: CommandLine) -> Iterator[str]:
    """What of the job's settings is known to work."""
    settings: Any = line.settings
    yield f"data parallel {line.shape.pipelines}"
    yield f"pipeline parallel {line.shape.stages}"
    yield f"tensor parallel {settings.tensor_model_parallel_size}"
    if not settings.untie_embeddings_and_output_weights:
        yield "tied embeddings"
    for name, words in (("bf16", "bf16"), ("fp16", "fp16"), ("calculate_per_token_loss", "per-token loss")):
        if getattr(settings, name):
            yield words
    if settings.recompute_granularity:
        yield f"recompute ({settings.recompute_granularity})"
    if settings.clip_grad:
        yield f"gradient clipping at {settings.clip_grad:g}"
    if line.flags.staggered:
        yield "stages that step on their own"
    if line.flags.exact:
        yield "exact sums of gradients"
    if settings.hidden_dropout or settings.attention_dropout:
        yield "dropout, with other random numbers than stock: the same whoever is dead"


def report(
    line: CommandLine, refused: list[str], fused: list[str], whole: Plan, asked: Plan, prices: list[Price]
) -> None:
    """Print it in lines and a table."""
    from rich.table import Table

    console = make_console()
    job = whole.job
    console.print(f"job        {line.shape}; {line.ranks[0]} ranks per server, {line.ranks[1]} in all")
    console.print(f"works      {'; '.join(works(line))}", markup=False)
    for problem in refused:
        console.print(f"refused    {problem}", markup=False)
    for problem in fused:
        console.print(f"fused      {problem}", markup=False)
    console.print(f"plan       period {job.time_text(whole.period)} with all servers: Megatron's own 1F1B")
    if asked.dead:
        names = ", ".join(map(str, asked.dead))
        kept = whole.period / asked.period
        console.print(
            f"           period {job.time_text(asked.period)} without {names}: {kept:.1%} of the throughput before this"
        )
    if not prices:
        console.print("failures   every server is the only one of its stage: nothing can take over; use more pipelines")
        return
    servers = line.shape.pipelines * line.shape.stages
    table = Table("one server dead in stage", "period", "throughput, of before", "servers alive")
    for each in prices:
        table.add_row(
            str(each.stage), job.time_text(each.period), f"{each.retention:.1%}", f"{(servers - 1) / servers:.1%}"
        )
    console.print(table)
    if line.flags.catalogue is None:
        console.print(
            "F, I and W are taken to be equally long: measure them with recycle profile, and plan ahead with recycle "
            f"catalogue --optimizer {whole.mode.optimizer}"
        )
