"""Studies and catalogues, for notebooks and scripts."""

import os
from collections.abc import Callable, Iterable, Mapping

from recycle.api.planned import (
    PathLike,
    Planned,
    read_count,
    read_effort,
    read_job,
    read_mode,
    read_path,
    read_seconds,
    read_servers,
)
from recycle.errors import UserError
from recycle.faults.outages import load_outages
from recycle.job import Job, Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue as make_catalogue_file
from recycle.processors import processors
from recycle.study.answer import Bill, StudyAnswer, answer
from recycle.study.compare import StudySetting, iteration_seconds
from recycle.study.constants import parse_constant
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground
from recycle.study.registry import ALL, parse_policies

SHIPPED = "language-model-cluster"


def compare_policies(
    job: Job,
    policies: str | Iterable[str] = ALL,
    *,
    trace: PathLike | None = None,
    mtbf_of_job: str | float | None = None,
    repair: str | float | None = None,
    servers: int | None = None,
    iteration: str | float | None = None,
    layers: int | None = None,
    constants: Mapping[str, str | float] | None = None,
    gpus_per_server: int | None = None,
    price: str | None = None,
    seeds: int = 3,
    with_choices: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> StudyAnswer:
    """What ``recycle study`` answers; ``answer.as_json()["policies"]`` are rows as ``pandas.DataFrame`` takes them.

    Args:
        job: what is trained.
        policies: ways of surviving by name.
        trace: a trace file, or the name of one that comes along; the default without ``mtbf_of_job``.
        mtbf_of_job: mean time between two random failures of the job, instead of a trace: a text, or seconds.
        repair: mean time from a random failure to the return; has no default.
        servers: that the trace is of, if it does not say.
        iteration: length of a fault-free iteration.
        layers: of the model; eight per stage by default.
        constants: of the models, by name: numbers of seconds, bytes or shares, or texts as ``--constant`` has them.
        gpus_per_server: to count GPU-hours.
        price: of an hour, such as ``2.5/gpuh``.
        seeds: samples of the failures.
        with_choices: whether it also says what spares and other shapes are worth.
        progress: told how far it is.

    Raises:
        UserError: something that was given cannot be used.
    """
    read_job(job).require_standard("a study")
    history = _history(job, trace, mtbf_of_job, repair, servers)
    setting = _setting(job, policies, history, iteration, layers, constants, seeds)
    gpus = None if gpus_per_server is None else read_count("gpus_per_server", gpus_per_server, 1)
    if not (price is None or isinstance(price, str)):
        raise UserError(f"price is {price!r}: give a text such as '2.5/gpuh' or '20/serverh'")
    return answer(setting, Bill.parse(gpus, price), progress, with_choices=with_choices)


def _history(
    job: Job,
    trace: PathLike | None,
    mtbf_of_job: str | float | None,
    repair: str | float | None,
    servers: int | None,
) -> FailureHistory:
    """The failures that are asked for, as ``compare_policies`` describes them."""
    if mtbf_of_job is None:
        if repair is not None:
            raise UserError(f"repair is {repair!r}: a trace has its own repairs; give mtbf_of_job too")
        path = SHIPPED if trace is None else os.fspath(read_path("trace", trace))
        count = None if servers is None else read_count("servers", servers, 1)
        return FailureHistory.recorded(load_outages(path, job, count))
    for name, value in (("trace", trace), ("servers", servers)):
        if value is not None:
            raise UserError(f"{name} is {str(value)!r} and mtbf_of_job is {mtbf_of_job!r}: give one of them")
    if repair is None:
        raise UserError(f"mtbf_of_job is {mtbf_of_job!r}: give repair too, such as '4h'")
    between, away = read_seconds("mtbf_of_job", mtbf_of_job), read_seconds("repair", repair)
    if not (between and away):
        raise UserError(f"mtbf_of_job is {mtbf_of_job!r} and repair is {repair!r}: give more than 0")
    return FailureHistory.random(between, job.pipelines * job.depth, away)


def _setting(
    job: Job,
    policies: str | Iterable[str],
    history: FailureHistory,
    iteration: str | float | None,
    layers: int | None,
    constants: Mapping[str, str | float] | None,
    seeds: int,
) -> StudySetting:
    seeds = read_count("seeds", seeds, 1)
    seconds = iteration_seconds(job) if iteration is None else read_seconds("iteration", iteration)
    depth = 8 * job.depth if layers is None else read_count("layers", layers, 1)
    ground = Ground(job, seconds, depth, history.failures_per_second(job.pipelines * job.depth))
    if not isinstance(policies, str):
        listed = list(policies) if isinstance(policies, Iterable) else [None]
        if not all(isinstance(each, str) for each in listed):
            raise UserError(f"policies is {policies!r}: give names, such as 'recycle,checkpoints'")
        policies = ",".join(map(str, listed))
    if not (constants is None or isinstance(constants, Mapping)):
        raise UserError(f"constants is {constants!r}: give a dict, such as {{'restart': 300}}")
    values = dict(
        parse_constant(f"{name}={value}") if isinstance(value, str) else (name, read_seconds(f"constant {name}", value))
        for name, value in (constants or {}).items()
    )
    return StudySetting(ground, history, parse_policies(policies), seeds, values)


class PlanCatalogue:
    """Plans that were made ahead of time.

    Args:
        path: of the file.
    """

    def __init__(self, path: PathLike) -> None:
        self._catalogue = Catalogue(read_path("path", path))

    def plan(self, dead: str | Server | Iterable[str | Server] = ()) -> Planned:
        """The plan around some dead servers.

        Raises:
            UserError: there is none for so many.
        """
        return Planned(self._catalogue.look_up(tuple(read_servers(dead))).plan())


def make_catalogue(
    job: Job,
    path: PathLike,
    failures: int = 1,
    *,
    budget: str | float = "2s",
    moves: int | None = None,
    seed: int = 0,
    mode: Mode | str = Mode(),  # noqa: B008 - immutable
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PlanCatalogue:
    """Plan every vector of failure counts into one file, on all processors.

    Args:
        job: what is trained.
        path: of the file, which ends in .zip.
        failures: the most servers that are dead at a time.
        budget: processor time to search for each plan.
        moves: search for so many moves instead, which gives the same file on every machine.
        seed: of the searches.
        mode: what the plans may do, as ``make_plan`` has it.
        progress: told how many plans are made, of how many.

    Raises:
        UserError: it cannot be made.
    """
    effort = read_effort(budget, moves, seed)
    most = read_count("failures", failures)
    target = read_path("path", path)
    watch = lambda done, total, _: progress(done, total)  # noqa: E731 - the entry is of no interest here
    make_catalogue_file(target, read_job(job), read_mode(mode), most, effort, "lowered", watch, processors())
    return PlanCatalogue(target)
