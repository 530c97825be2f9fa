"""``recycle doctor``."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.diagnosis import (
    BOTH_HOLDERS,
    RANKS_PER_HOST,
    Diagnosis,
    diagnose,
    for_cpu,
    split_at_script,
    survival,
    works,
)
from recycle.cli.options import Verb
from recycle.cli.parameters import Count
from recycle.job import Job, Server
from recycle.megatron.flag.command.command_line import CommandLine, read_command_line
from recycle.megatron.flag.command.megatron_options import LEFT_OUT, choose_release
from recycle.megatron.flag.command.planning import Source
from recycle.megatron.flag.command.refusals import Refusal, read_only
from recycle.plan.plan import Plan
from recycle.wording import plural

if TYPE_CHECKING:
    from recycle.cli.failure_costs import FailureCosts, HostCost, HostCosts, Restart

TRIED = "one H100 has run Megatron's pretrain_gpt.py over gloo, 4 ranks, one of them killed"

ALL_OF_A_STAGE = "all servers of a stage"


@click.command("doctor", cls=Verb, context_settings={"allow_interspersed_args": False})
@click.option("--ranks", type=Count(1), help="The total number of processes, where the command line does not give it.")
@click.option(
    "--ranks-per-host",
    type=Count(1),
    help=f"Processes on each host; default: torchrun's --nproc-per-node, or {RANKS_PER_HOST}.",
)
@click.option(
    "--megatron",
    metavar="RELEASE",
    help="The release whose options count; default: the installed one, or else the newest that is known.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    ranks: int | None,
    ranks_per_host: int | None,
    megatron: str | None,
    as_json: bool,
    words: Sequence[str],
) -> None:
    """Check what --pipeline-schedule recycle would do for a Megatron job, whose command line is COMMAND.

    The job is judged on the machines that it is for: if it trains over NCCL, GPUs and NCCL are taken to be there.

    Reports whether it runs, what is refused and what to change, which words neither Megatron nor the script knows, and
    what of it has not run on a GPU. Then whether the job survives the death of a process and the loss of a host, and
    the plan. The last part is what the loss of a server, and of a host, would cost: by re-routing, without its
    pipelines, and by a restart.

    Without a catalogue (--recycle-catalogue), F, I and W are taken to be equally long. Options that the script adds are
    known if it can be read here. Beside a word that is not known no plan is shown, as it may be a size of the job.
    Exits with status 1 if something is refused or not known.

    \b
    recycle doctor torchrun --nproc-per-node 8 pretrain_gpt.py --pipeline-model-parallel-size 4 ...
    recycle doctor --ranks 64 pretrain_gpt.py --tensor-model-parallel-size 2 ...
    """
    on_cpu = for_cpu(words)
    words = words if on_cpu is None else on_cpu
    line = read_command_line(words, ranks)
    launcher, (named, *_) = split_at_script(words)
    script = Path(named)
    diagnosis = diagnose(line, ranks_per_host, choose_release(megatron), script, launcher)
    untried = list(untried_on_gpus(line, diagnosis.ranks_per_host)) if on_cpu is None else []
    if diagnosis.unread:
        # A word that is not known may be a misspelt size: whatever follows from the shape would be another job's.
        if as_json:
            print_json(as_fields(diagnosis, untried) | {"plan": None})
        else:
            report(diagnosis, script, untried)
            make_console().print("plan       none: correct the unread words first, as one may be a size of the job")
        sys.exit(1)
    from recycle.cli.failure_costs import failure_costs
    from recycle.planner.source import price

    source = Source(line.flags, line.flags.read_catalogue(), line.shape, [str(each) for each in diagnosis.fused], price)
    with progress_line("planning"):
        whole = source.plan(())
        asked = source.plan(line.flags.dead) if line.flags.dead else whole
        costs = failure_costs(line, diagnosis.ranks_per_host, source, whole)
    if as_json:
        print_json(as_fields(diagnosis, untried) | {"plan": plan_fields(diagnosis.line, whole, asked, costs)})
    else:
        print_job(diagnosis.line)
        report(diagnosis, script, untried)
        report_plan(diagnosis, whole, asked)
        report_costs(diagnosis, whole, costs)
    sys.exit(0 if diagnosis.runs else 1)


def as_fields(diagnosis: Diagnosis, untried: list[str]) -> dict[str, Any]:
    """The report for other programs, without the plan."""
    line = diagnosis.line

    def advised(found: list[Refusal]) -> list[dict[str, str]]:
        return [{"flag": line.option(each.name), **each.advice._asdict()} for each in found]

    return {
        "runs": diagnosis.runs,
        "survives_process": diagnosis.survives_process,
        "survives_host": diagnosis.survives_host,
        "survives_first_host": diagnosis.survives_first_host,
        "split": not diagnosis.fused,
        "refused": advised(diagnosis.refused),
        "fused": advised(diagnosis.fused),
        "read_only": advised(list(read_only(line.setting))),
        "untried_on_gpus": untried,
        "left_out": list(line.left_out),
        "unread": [each._asdict() for each in diagnosis.unread],
        "ignored": [each._asdict() for each in diagnosis.ignored],
        "unprotected": diagnosis.unprotected,
        "exposed_stages": diagnosis.exposed,
        "torn_stages": diagnosis.torn,
        "works": list(works(line)),
    }


def plan_fields(line: CommandLine, whole: Plan, asked: Plan, costs: "FailureCosts") -> dict[str, Any]:
    """The plan, and what failures cost, for other programs."""
    return {
        "shape": line.shape._asdict(),
        "ranks": line.ranks,
        "growth": list(line.growth),
        "dead": [str(server) for server in asked.dead],
        "period": asked.period,
        "bound": asked.bound,
        "of_before": whole.period / asked.period,
        "throughput": asked.throughput,
        "memory": [whole.job.capacity(place) for place in range(whole.job.depth)],
        **msgspec.to_builtins(costs),
    }


def print_job(line: CommandLine) -> None:
    """Print the shape of the job."""
    ranks = f"{plural(line.server_ranks.size, 'rank')} per server, {line.ranks} in all"
    make_console().print(f"job        {line.shape}; {ranks}")


def report(diagnosis: Diagnosis, script: Path, untried: list[str]) -> None:
    """Print whether the job runs, and what prevents it."""
    console, line = make_console(), diagnosis.line
    console.print(f"runs       {'yes' if diagnosis.runs else 'no'}, by the options of Megatron {diagnosis.release}")
    console.print(f"works      {'; '.join(works(line))}")
    for unread in diagnosis.unread:
        console.print(f"unread     {unread}")
    if diagnosis.unread and not script.is_file():
        console.print(f"           there is no {script} here, so that options which it adds are not known")
    for ignored in diagnosis.ignored:
        console.print(f"ignored    {ignored}")
    for kind, found in (("refused", diagnosis.refused), ("fused", diagnosis.fused)):
        for each in found:
            console.print(f"{kind:10} {line.option(each.name)}: {each.advice.reason}")
            console.print(f"           change: {each.advice.remedy}")
    for each in read_only(line.setting):
        console.print(f"read only  {line.option(each.name)}: {each.advice.reason}; {each.advice.remedy}")
    if untried:
        console.print(f"not tried  on GPUs: {', '.join(untried)}; {TRIED}")
    for option in line.left_out:
        console.print(f"left out   {option}: {LEFT_OUT[option]}")


def report_plan(diagnosis: Diagnosis, whole: Plan, asked: Plan) -> None:
    """Print what the job survives, and by which plan it trains."""
    console, line, job = make_console(), diagnosis.line, whole.job
    console.print(f"survives   {survival(diagnosis)}")
    console.print(f"memory     {memory_text(line, job)}")
    own = "Megatron's own 1F1B" if job.standard else "a plan in the place of Megatron's interleaved schedule"
    console.print(f"plan       period {job.time_text(whole.period)} with all servers: {own}")
    if asked.dead:
        names = ", ".join(map(str, asked.dead))
        kept = f"{whole.period / asked.period:.1%} of before"
        console.print(f"           period {job.time_text(asked.period)} without {names}: throughput {kept}")


def report_costs(diagnosis: Diagnosis, whole: Plan, costs: "FailureCosts") -> None:
    """Print what one dead server, and one lost host, cost, in a table and lines."""
    from rich.table import Table

    console, line, job = make_console(), diagnosis.line, whole.job
    if not costs.failures:
        console.print("failures   every server is the only one of its stage: nothing can take over; use more pipelines")
        console.print(f"instead    {restart_text(costs.restart)}")
        return
    pipelines, servers = line.shape.pipelines, line.shape.pipelines * line.shape.stages
    table = Table("one server dead in stage", "period", "throughput, of before", "cost")
    for each in costs.failures:
        table.add_row(str(each.stage), job.time_text(each.period), f"{each.of_before:.1%}", cost_text(each.of_before))
    console.print(table)
    console.print(f"           {1 / servers:.1%} of the servers are dead then")
    host = costs.host
    console.print(f"host       {host_text(diagnosis, host)}")
    console.print(f"instead    its pipeline left out: {without_text(pipelines, 1)}")
    if host.pipelines:
        theirs = "its pipeline" if host.pipelines == 1 else f"its {host.pipelines} pipelines"
        console.print(
            f"           after the loss of a host, {theirs} left out: {without_text(pipelines, host.pipelines)}"
        )
    console.print(f"           {restart_text(costs.restart)}")
    if line.flags.catalogue is None:
        console.print(
            "F, I and W are taken to be equally long: put measured times into a job file, and plan ahead with recycle "
            f"catalogue --optimizer {whole.mode.optimizer}"
        )


def host_text(diagnosis: Diagnosis, host: "HostCosts") -> str:
    """What dies with a host, and what that costs by re-routing, in words."""
    size, per_host = diagnosis.line.server_ranks.size, diagnosis.ranks_per_host
    if max(host.servers) == 1:
        text = f"a server is on {-(-size // per_host)} hosts" if size > per_host else "a host is one server"
        return f"{text}: its loss costs what the table says"
    if not host.rerouted:
        if host.torn:
            return f"every host has {ALL_OF_A_STAGE}, or {BOTH_HOLDERS}, so that its loss ends the job"
        return f"every host has {ALL_OF_A_STAGE}, so that no peer can take over"
    text = f"{span(list(map(str, host.servers)))} servers die with a host"
    best_first = sorted(host.rerouted, key=lambda each: each.period)
    of_before = [each.of_before for each in best_first]
    text += (
        f", {relation(best_first)}: throughput {span([f'{each:.1%}' for each in of_before])} of before, cost "
        f"{span(list(map(cost_text, of_before)))}"
    )
    if host.unplanned:
        failures = max(host.servers)
        text += f"; the catalogue has no plan for {plural(host.unplanned, 'host')}: make it with --failures {failures}"
    for number, what in ((host.fatal, ALL_OF_A_STAGE), (host.torn, BOTH_HOLDERS)):
        if number:
            has = "1 host has" if number == 1 else f"each of {number} hosts has"
            text += f"; {has} {what}, so that its loss ends the job"
    return text


def relation(hosts: Sequence["HostCost"]) -> str:
    """How the servers of one host belong together, in words."""
    dead = [[Server.parse(name) for name in each.dead] for each in hosts]
    if all(len({server.pipeline for server in each}) == 1 for each in dead):
        return "all of one pipeline"
    if all(len({server.stage for server in each}) == 1 for each in dead):
        return "all of one stage"
    return f"such as {', '.join(hosts[-1].dead)}"


def span(texts: Sequence[str]) -> str:
    """The first and the last of some texts; one if they are the same."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def without_text(pipelines: int, left_out: int) -> str:
    """What is lost where some pipelines are left out, in words."""
    left = pipelines - left_out
    if not left:
        return "all is lost, as no other is left"
    kept = "1 pipeline trains on" if left == 1 else f"{left} pipelines train on"
    return f"{left_out / pipelines:.1%}; {kept}, with a smaller batch"


def cost_text(of_before: float) -> str:
    """What is lost of a throughput; what is gained, where a split backward pass makes up for more than the death."""
    return f"{1 - of_before:.1%}" if of_before <= 1 else f"none, {of_before - 1:.1%} gained"


def restart_text(restart: "Restart") -> str:
    """What a restart costs, in words."""
    redone = "all iterations, as there is no --save with --save-interval,"
    if restart.iterations is not None:
        redone = f"{restart.iterations:g} iterations in the mean"
    return (
        f"a restart at each failure: {redone} made again, {restart.least:.0f} to {restart.most:.0f} s of standing "
        "still (Varuna on 30 A40, SOSP'23), and the pipeline left out until a server is put in its place"
    )


def memory_text(line: CommandLine, job: Job) -> str:
    """What a server's memory is taken to hold, in words."""
    held = [job.capacity(place) for place in range(job.depth)]
    most = "1 micro-batch" if held[0] == 1 else f"{held[0]} micro-batches"
    if len(set(held)) > 1:
        most = f"{', '.join(map(str, held))} micro-batches, by its stage"
    parts = [f"each server is taken to hold the activations of up to {most}"]
    if job.standard and job.depth > 1:
        first = min(job.depth, job.micro_batches)
        parts[0] += f", where 1F1B holds {first} on the first stage and 1 on the last"
    if line.setting("use_distributed_optimizer"):
        parts.append("two shards of the optimizer's state in place of one")
    if line.flags.owns_steps:
        parts.append("the state before the last step")
    return "; ".join(parts)


def untried_on_gpus(line: CommandLine, ranks_per_host: int) -> Iterator[str]:
    """What the job asks for that no GPU has run; all of it has run on CPUs but for what ``read_only`` names."""
    ranks = line.server_ranks
    if line.setting("distributed_backend") == "nccl":
        yield "NCCL between its servers"
    if line.ranks > 1:
        yield "ranks on GPUs of their own"
    if line.ranks > ranks_per_host:
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
    if line.flags.keep_in_memory is not None:
        yield "the state in memory"
    if line.flags.stagger or line.flags.exact:
        yield "stages that are stepped by recycle"
