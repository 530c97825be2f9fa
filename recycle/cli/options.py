"""Options that several verbs share: the job, the dead servers, the mode, durations."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from recycle.cli.parameters import DURATION, Count, InputPath, OutputFile, OutputFolder, Whole
from recycle.errors import UserError
from recycle.files import STANDARD
from recycle.job import Job, Server
from recycle.jobfile import load_job
from recycle.placement import placement_text
from recycle.plan.checker import require_legal
from recycle.plan.document import load_plan
from recycle.plan.mode import ROUTINGS, Mode
from recycle.plan.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])


SHAPE = {
    "pipelines": ("-D", "pipelines, the data-parallel degree"),
    "stages": ("-P", "stages per pipeline"),
    "micro_batches": ("-M", "micro-batches per pipeline and iteration"),
}
"""The keys of a job file that are options too: what they are called, and what they are."""

SEARCH = ("--routing", "--optimizer", "--backward", "--budget", "--moves", "--seed", "--prove")
"""The options of how a plan is searched for."""

JOB_HEADING = "Options that describe a job, or change what its file says"


class GroupedOption(click.Option):
    """An option under a heading of its own.

    Args:
        arguments: click's.
        heading: which.
        keywords: click's.
    """

    def __init__(self, *arguments: Any, heading: str, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.heading = heading


class Verb(click.Command):
    """A verb whose options have one value each, and whose files can be standard input, one of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: D102 - click's contract
        if not ctx.resilient_parsing:
            self._require_one_value(ctx, args)
        rest = super().parse_args(ctx, args)
        inputs = [each for each in self.params if not isinstance(each.type, OutputFile | OutputFolder)]
        asking = [each for each in inputs for _ in _dashes(ctx, each)]
        if len(asking) > 1:
            names = (
                each.opts[-1] if isinstance(each, click.Option) else (each.metavar or "").strip("[]") for each in asking
            )
            raise UserError(
                f"{' and '.join(names)}: standard input can be read once; give a file in the place of one {STANDARD}"
            )
        return rest

    def _require_one_value(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse an option with two values: click would take the last one, and pass over the dead of the first."""
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for each, times in Counter(given).items():
            if times > 1 and isinstance(each, click.Option) and not (each.is_flag or each.multiple):
                raise UserError(f"{each.opts[-1]}: it was given {times} times; give it once")


def _dashes(context: click.Context, parameter: click.Parameter) -> Iterable[object]:
    given = context.params.get(parameter.name or "")
    return [each for each in (given if isinstance(given, tuple) else (given,)) if str(each) == str(STANDARD)]


class JobCommand(Verb):
    """A verb that works on a job: its help has what is the verb's own first, and what describes jobs after that."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: D102 - click's contract
        groups: dict[str, list[click.Option]] = {"Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                groups.setdefault(each.heading if isinstance(each, GroupedOption) else "Options", []).append(each)
        of_job = groups.pop(JOB_HEADING)
        for title, group in (*groups.items(), (JOB_HEADING, of_job)):
            records = [record for each in group if (record := each.get_help_record(ctx)) is not None]
            with formatter.section(title):
                formatter.write_dl(records)


class Described(NamedTuple):
    """A job as the command line describes it.

    Attributes:
        file: that was given; None where options describe the job.
        shape: what options say, by keys of a job file.
    """

    file: Path | None
    shape: dict[str, int]

    def load(self) -> Job:
        """The job.

        Raises:
            UserError: there is none.
        """
        if self.file is None and not self.shape:
            raise UserError("no job: give a job file, or at least --pipelines, --stages and --micro-batches")
        return load_job(self.file, self.shape)


def described_job(function: F) -> F:
    """Add the JOB argument and the options of a job's shape; the function gets ``described``."""

    @wraps(function)
    def wrapper(job_file: Path | None, **arguments: Any) -> Any:
        shape = {key: value for key in SHAPE if (value := arguments.pop(key)) is not None}
        return function(described=Described(job_file, shape), **arguments)

    decorated: Any = wrapper
    for key, (letter, text) in reversed(SHAPE.items()):
        decorated = click.option(
            letter,
            f"--{key.replace('_', '-')}",
            key,
            type=Whole(),
            help=f"{text[0].upper()}{text[1:]}.",
            cls=GroupedOption,
            heading=JOB_HEADING,
        )(decorated)
    decorated = click.argument("job_file", metavar="[JOB]", required=False, type=InputPath(dir_okay=False))(decorated)
    result: F = decorated
    return result


def job_options(function: F) -> F:
    """Add the JOB argument and the options of a job's shape; the function gets ``job``."""

    @wraps(function)
    def wrapper(described: Described, **arguments: Any) -> Any:
        return function(job=described.load(), **arguments)

    decorated: Any = wrapper
    result: F = described_job(decorated)
    return result


def mode_options(function: F) -> F:
    """Add what a plan may do; the function gets ``mode``."""

    @wraps(function)
    def wrapper(backward: Any, optimizer_mode: Any, routing: Any, **arguments: Any) -> Any:
        return function(mode=Mode(backward, optimizer_mode, routing), **arguments)

    decorated: Any = wrapper
    for names, choices, text in (
        (
            ("--routing",),
            tuple(ROUTINGS),
            f"{'; '.join(f'{name}: {summary}' for name, summary in ROUTINGS.items())}.",
        ),
        (
            ("--optimizer", "optimizer_mode"),
            ("staggered", "global"),
            "staggered: each stage steps when it is ready; global: all together.",
        ),
        (("--backward",), ("split", "fused"), "split: input and weight gradient may be two instructions; fused: one."),
    ):
        decorated = click.option(*names, type=click.Choice(choices), default=choices[0], show_default=True, help=text)(
            decorated
        )
    result: F = decorated
    return result


def refuse_unread(branch: str, *flags: str) -> None:
    """Refuse options that what was asked for takes no account of.

    Args:
        branch: what was asked for, as people write it.
        flags: the options.

    Raises:
        UserError: one of them was given.
    """
    context = click.get_current_context()
    for each in context.command.params:
        given = context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
        if given and not set(flags).isdisjoint(each.opts):
            raise UserError(f"{each.opts[-1]}: {branch} takes no account of it; leave it out")


def json_option(function: F) -> F:
    """Add ``--json``; the function gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Report as JSON.")(function)


def plan_argument(function: F) -> F:
    """Add the PLAN argument; the function gets ``plan_file``."""
    return click.argument("plan_file", metavar="PLAN", type=InputPath())(function)


def load_legal_plan(path: Path) -> Plan:
    """Read a plan file whose plan is legal.

    Raises:
        UserError: it cannot be read, or is no plan of this version.
        IllegalPlan: the plan is illegal.
    """
    plan = load_plan(path)
    require_legal(plan, path)
    return plan


def describe_dead(dead: Iterable[Server]) -> str:
    """The dead servers in words."""
    return ", ".join(map(str, dead)) or "none"


def describe_job(job: Job) -> str:
    """The job's shape in words."""
    if not job.even:
        lengths = sorted({len(placement) for placement in job.placements})
        servers = " to ".join(str(each) for each in sorted({lengths[0], lengths[-1]}))
        return (
            f"{job.name}: {job.pipelines} pipelines of {servers} servers, {len(job.stages)} chunks, "
            f"{sum(job.loads)} micro-batches in all"
        )
    placement = "" if job.standard else f", {placement_text(job.chunks)}"
    return f"{job.name}: {job.pipelines} pipelines x {job.depth} stages x {job.micro_batches} micro-batches{placement}"


def describe_throughput(plan: Plan) -> list[str]:
    """What a plan's throughput is worth: against fault-free 1F1B and, with dead servers, against all servers alive.

    Where memory is tight, it is also said against 1F1B with the memory that it wants.
    """
    from recycle.planner.assemble import unlimited_baseline
    from recycle.planner.model.bounds import lower_bound, period
    from recycle.planner.model.problem import make_problem

    job, found, wanted = plan.job, max(plan.period, 1), unlimited_baseline(plan.job)
    text = f"{plan.baseline / found:.1%} of {job.baseline_name} (period {job.time_text(plan.baseline)})"
    if wanted < plan.baseline:
        text += f", {wanted / found:.1%} of 1F1B with the memory that it wants (period {job.time_text(wanted)})"
    if not plan.dead:
        return [text]
    problem = make_problem(job, job.dead_servers(()), plan.mode)
    least = period(problem, lower_bound(problem).value)
    servers = len(job.servers())
    return [
        f"{text}, with {(servers - len(plan.dead)) / servers:.1%} of the servers alive",
        f"at least {least / found:.1%} of the best plan with all servers (bound {job.time_text(least)})",
    ]


def search_options(function: F) -> F:
    """Add how long to search; the function gets ``stop``, ``budget`` (that in words) and ``seed``."""

    @wraps(function)
    def wrapper(budget: float, moves: int | None, **arguments: Any) -> Any:
        from recycle.planner.model.stopping import MaxMoves, MaxSeconds

        if moves is not None:
            refuse_unread("--moves", "--budget")
            return function(stop=MaxMoves(moves), budget=f"{moves} moves", **arguments)
        return function(stop=MaxSeconds(budget), budget=f"{budget:g} s", **arguments)

    decorated: Any = wrapper
    for option in (
        click.option("--seed", type=Whole(), default=0, show_default=True, help="Seed of the random search."),
        click.option(
            "--moves",
            type=Count(1),
            help="Try this many changes of the plan instead; gives the same plan on every machine.",
        ),
        click.option(
            "--budget",
            type=DURATION,
            default="2s",
            show_default=True,
            help="Most processor time for the search.",
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result
