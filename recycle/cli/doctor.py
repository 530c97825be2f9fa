"""``recycle doctor``."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.parameters import Count
from recycle.job import Server
from recycle.megatron.flag.command_line import RAMP_UP, CommandLine, read_command_line
from recycle.megatron.flag.flags import owns_steps
from recycle.megatron.flag.left_out import LEFT_OUT
from recycle.megatron.flag.option_table import Unread, choose_release, find_unread
from recycle.megatron.flag.planning import Source
from recycle.megatron.flag.ranks import PIPELINES_LAST, exposed_stages, hosts_of, servers_of, unprotected
from recycle.megatron.flag.refusals import Refusal, not_kept, not_own, read_only, refusals, unsplit
from recycle.megatron.flag.sizes import unfit
from recycle.plan.plan import Plan
from recycle.wording import plural

RANKS_PER_HOST = 8

NOT_ASKED = "NCCL is taken to be there only where recycle doctor --nccl says so"


class Price(NamedTuple):
    """What one dead server costs.

    Attributes:
        stage: of the server.
        period: time of an iteration with it dead.
        of_before: the throughput, against that with all servers.
        of_1f1b: the throughput, against fault-free 1F1B.
    """

    stage: int
    period: int
    of_before: float
    of_1f1b: float


class Diagnosis(NamedTuple):
    """What is to be said of a job.

    Attributes:
        line: its command line.
        refused: settings with which no plan can run.
        fused: settings that prevent a split backward pass.
        unread: words that nobody reads.
        release: of Megatron, whose options count.
        unprotected: why the death of a process ends the job; empty if it does not.
        exposed: the stages that lose all their servers with one host.
        ranks_per_host: that was judged by.
    """

    line: CommandLine
    refused: list[Refusal]
    fused: list[Refusal]
    unread: list[Unread]
    release: str
    unprotected: str
    exposed: list[int]
    ranks_per_host: int

    @property
    def runs(self) -> bool:
        """Whether a plan can run."""
        return not self.refused

    @property
    def survives_process(self) -> bool:
        """Whether the job outlives the death of any one process, if torchrun starts it."""
        return self.runs and not self.unprotected

    @property
    def survives_host(self) -> bool:
        """Whether every stage has a live server whichever host is lost."""
        return self.survives_process and not self.exposed


@click.command("doctor", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--ranks", type=Count(1), help="The total number of processes, where the command line does not give it.")
@click.option(
    "--ranks-per-host",
    type=Count(1),
    help=f"Processes on each host; default: torchrun's --nproc-per-node, or {RANKS_PER_HOST}.",
)
@click.option("--nccl", is_flag=True, help="The job's machines have GPUs, and a torch with NCCL.")
@click.option("--megatron", metavar="RELEASE", help="The release whose options count; default: the installed one.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    ranks: int | None,
    ranks_per_host: int | None,
    nccl: bool,
    megatron: str | None,
    as_json: bool,
    words: Sequence[str],
) -> None:
    """Check what --pipeline-schedule recycle would do for a Megatron job, whose command line is COMMAND.

    Reports whether it runs, what is refused and what to change, which words nobody reads, whether the job survives the
    death of a process and the loss of a host, the plan, and what the loss of a server would cost. Without a catalogue
    (--recycle-catalogue), F, I and W are taken to be equally long. Exits with status 1 if something is refused.

    \b
    recycle doctor torchrun --nproc-per-node 8 pretrain_gpt.py --pipeline-model-parallel-size 4 ...
    recycle doctor --ranks 64 pretrain_gpt.py --tensor-model-parallel-size 2 ...
    """
    line = read_command_line(words, ranks)
    diagnosis = diagnose(line, ranks_per_host, choose_release(megatron), "" if nccl else NOT_ASKED)
    from recycle.planner.source import price as make

    source = Source(line.flags, line.shape, [str(each) for each in diagnosis.fused], make)
    with progress_line("planning"):
        whole = source.plan(())
        asked = source.plan(line.flags.dead) if line.flags.dead else whole
        prices = [price(whole, source.plan([Server(0, stage)]), stage) for stage in price_list(line)]
    if as_json:
        print_json(as_fields(diagnosis, whole, asked, prices))
    else:
        report(diagnosis, whole, asked, prices)
    sys.exit(0 if diagnosis.runs else 1)


def diagnose(line: CommandLine, ranks_per_host: int | None, release: str, lacks_nccl: str) -> Diagnosis:
    """Judge a command line.

    Args:
        line: which.
        ranks_per_host: processes on each host; None to take what the line says.
        release: of Megatron, whose options count.
        lacks_nccl: why NCCL is not taken to be there; empty if it is.
    """
    refused = list(refusals(line.setting, lacks_nccl))
    if owns_steps(line.flags):
        refused += not_own(line.setting, line.flags.exact)
    elif line.flags.redundancy is not None:
        refused += not_kept(line.setting)
    refused += unfit(line.setting)
    unread = list(find_unread(line.arguments, release))
    if any(each.word == RAMP_UP for each in unread):
        line = line._replace(growth=())
    per_host = ranks_per_host or line.ranks_per_host or RANKS_PER_HOST
    servers = servers_of(line.shape, line.pipelines_last)
    return Diagnosis(
        line,
        refused,
        list(unsplit(line.setting)),
        unread,
        release,
        unprotected(line.shape, line.flags.dead),
        exposed_stages(servers, hosts_of(servers, line.server_ranks.size, per_host)),
        per_host,
    )


def price_list(line: CommandLine) -> range:
    """The stages that can lose a server: all, where there is a peer to take over."""
    return range(line.shape.stages if line.shape.pipelines > 1 else 0)


def price(whole: Plan, plan: Plan, stage: int) -> Price:
    """What a plan costs against the one in which all servers are alive."""
    return Price(stage, plan.period, whole.period / plan.period, plan.retention)


def works(line: CommandLine) -> Iterator[str]:
    """What of the job's settings is known to work."""
    settings: Any = line.settings
    ranks, pipelines = line.server_ranks, line.shape.pipelines * line.server_ranks.pipelines
    yield f"data parallel {pipelines}"
    yield f"pipeline parallel {line.shape.stages}"
    if line.shape.virtual > 1:
        yield f"{line.shape.virtual} virtual stages of each rank"
    yield f"tensor parallel {settings.tensor_model_parallel_size}"
    if ranks.pipelines > 1:
        among = f"{ranks.pipelines} of Megatron's {pipelines} pipelines"
        yield f"experts among {ranks.size} ranks, which are lost together, of {among}"
    if not settings.untie_embeddings_and_output_weights:
        yield "tied embeddings"
    for name, words in (("bf16", "bf16"), ("fp16", "fp16"), ("calculate_per_token_loss", "per-token loss")):
        if getattr(settings, name):
            yield words
    if settings.recompute_granularity:
        yield f"recompute ({settings.recompute_granularity})"
    if settings.clip_grad:
        yield f"gradient clipping at {settings.clip_grad:g}"
    if line.growth:
        yield f"batches that grow from {line.growth[0]} to {line.growth[-1]} micro-batches per pipeline"
    if line.flags.staggered:
        yield "stages that step on their own"
    if line.flags.exact:
        yield "exact sums of gradients"
    if line.flags.redundancy is not None:
        yield f"the state in memory, {line.flags.redundancy}"
    if settings.hidden_dropout or settings.attention_dropout:
        yield "dropout, with other random numbers than stock: the same whoever is dead"


def as_fields(diagnosis: Diagnosis, whole: Plan, asked: Plan, prices: list[Price]) -> dict[str, Any]:
    """The report for other programs."""
    line = diagnosis.line

    def advised(found: list[Refusal]) -> list[dict[str, str]]:
        return [{"flag": line.option(each.name), **each.advice._asdict()} for each in found]

    return {
        "runs": diagnosis.runs,
        "survives_process": diagnosis.survives_process,
        "survives_host": diagnosis.survives_host,
        "split": not diagnosis.fused,
        "refused": advised(diagnosis.refused),
        "fused": advised(diagnosis.fused),
        "read_only": advised(list(read_only(line.setting))),
        "left_out": list(line.left_out),
        "unread": [each._asdict() for each in diagnosis.unread],
        "unprotected": diagnosis.unprotected,
        "exposed_stages": diagnosis.exposed,
        "works": list(works(line)),
        "plan": {
            "shape": line.shape._asdict(),
            "ranks": line.ranks,
            "growth": list(line.growth),
            "dead": [str(server) for server in asked.dead],
            "period": asked.period,
            "bound": asked.bound,
            "of_before": whole.period / asked.period,
            "of_1f1b": asked.retention,
            "failures": [each._asdict() for each in prices],
        },
    }


def report(diagnosis: Diagnosis, whole: Plan, asked: Plan, prices: list[Price]) -> None:
    """Print it in lines and a table."""
    from rich.table import Table

    console, line = make_console(), diagnosis.line
    job = whole.job
    console.print(f"job        {line.shape}; {plural(line.server_ranks.size, 'rank')} per server, {line.ranks} in all")
    console.print(f"runs       {'yes' if diagnosis.runs else 'no'}, by the options of Megatron {diagnosis.release}")
    console.print(f"works      {'; '.join(works(line))}", markup=False)
    for kind, found in (("refused", diagnosis.refused), ("fused", diagnosis.fused)):
        for each in found:
            console.print(f"{kind:10} {line.option(each.name)}: {each.advice.reason}", markup=False)
            console.print(f"           change: {each.advice.remedy}", markup=False)
    for each in read_only(line.setting):
        console.print(f"read only  {line.option(each.name)}: {each.advice.reason}; {each.advice.remedy}", markup=False)
    for option in line.left_out:
        console.print(f"left out   {option}: {LEFT_OUT[option]}", markup=False)
    for unread in diagnosis.unread:
        console.print(f"unread     {unread}", markup=False)
    console.print(f"survives   {survival(diagnosis)}", markup=False)
    own = "Megatron's own 1F1B" if job.standard else "a plan in the place of Megatron's interleaved schedule"
    console.print(f"plan       period {job.time_text(whole.period)} with all servers: {own}")
    if asked.dead:
        names = ", ".join(map(str, asked.dead))
        kept = f"{whole.period / asked.period:.1%} of before"
        console.print(f"           period {job.time_text(asked.period)} without {names}: throughput {kept}")
    if not prices:
        console.print("failures   every server is the only one of its stage: nothing can take over; use more pipelines")
        return
    servers = line.shape.pipelines * line.shape.stages
    table = Table("one server dead in stage", "period", "throughput, of before", "of fault-free 1F1B", "servers alive")
    for price in prices:
        shares = (price.of_before, price.of_1f1b, (servers - 1) / servers)
        table.add_row(str(price.stage), job.time_text(price.period), *(f"{each:.1%}" for each in shares))
    console.print(table)
    if line.flags.catalogue is None:
        console.print(
            "F, I and W are taken to be equally long: measure them with recycle profile, and plan ahead with recycle "
            f"catalogue --optimizer {whole.mode.optimizer}"
        )


def survival(diagnosis: Diagnosis) -> str:
    """Which deaths the job survives, in words."""
    if not diagnosis.runs:
        return "nothing, as it does not run"
    if not diagnosis.survives_process:
        return f"no death of a process: {diagnosis.unprotected}"
    if not diagnosis.exposed:
        return "the death of a process, and the loss of a host"
    stages = ", ".join(map(str, diagnosis.exposed))
    text = (
        f"the death of a process, but not the loss of a host: with {diagnosis.ranks_per_host} ranks on each, one has "
        f"all servers of stage {stages}"
    )
    line = diagnosis.line
    others = servers_of(line.shape, True)
    hosts = hosts_of(others, line.server_ranks.size, diagnosis.ranks_per_host)
    helps = not line.pipelines_last and not exposed_stages(others, hosts)
    return f"{text}; {PIPELINES_LAST} changes that" if helps else text
