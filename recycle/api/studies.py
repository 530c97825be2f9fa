"""Studies, catalogues and ways of surviving, for notebooks and scripts."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from recycle.api.planned import Planned, read_servers
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.faults.outages import load_outages
from recycle.job import Job, Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue as make_catalogue_file
from recycle.planner.make import Effort
from recycle.planner.model.stopping import MaxMoves
from recycle.processors import processors
from recycle.study.answer import StudyAnswer, answer
from recycle.study.bill import Bill
from recycle.study.compare import StudySetting, iteration_seconds
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground
from recycle.study.registry import ALL, parse_policies

SHIPPED = "language-model-cluster"


def compare_policies(
    job: Job,
    policies: Iterable[str] = ALL,
    *,
    trace: str | None = None,
    mtbf_of_job: str | None = None,
    repair: str = "4h",
    servers: int | None = None,
    iteration: str | None = None,
    layers: int | None = None,
    constants: Mapping[str, float] | None = None,
    gpus_per_server: int | None = None,
    price: str | None = None,
    seeds: int = 3,
    with_choices: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> StudyAnswer:
    """What ``recycle study`` answers; ``answer.as_json()["policies"]`` are rows as ``pandas.DataFrame`` takes them.

    Args:
        job: what is trained.
        policies: ways of surviving by name, those of ``register_policy`` among them.
        trace: a trace file, or the name of one that comes along; the default without ``mtbf_of_job``.
        mtbf_of_job: mean time between two random failures of the job, instead of a trace.
        repair: mean time from a random failure to the return.
        servers: that the trace is of, if it does not say.
        iteration: length of a fault-free iteration.
        layers: of the model; eight per stage by default.
        constants: of the models, by name.
        gpus_per_server: to count GPU-hours.
        price: of an hour, such as ``2.5/gpuh``.
        seeds: samples of the failures.
        with_choices: whether it also says what spares, other shapes, micro-batches and memory are worth.
        progress: told how far it is.

    Raises:
        UserError: something that was given cannot be used.
    """
    if trace is not None and mtbf_of_job is not None:
        raise UserError(f"trace is {trace!r} and mtbf_of_job is {mtbf_of_job!r}: give one of them")
    job.require_standard("a study")
    size = job.pipelines * job.depth
    if mtbf_of_job is None:
        history = FailureHistory.recorded(load_outages(trace or SHIPPED, job, servers))
    else:
        history = FailureHistory.random(parse_duration(mtbf_of_job), size, parse_duration(repair))
    seconds = iteration_seconds(job) if iteration is None else parse_duration(iteration)
    ground = Ground(job, seconds, layers or 8 * job.depth, history.failures_per_second(size))
    names = parse_policies(",".join(policies))
    setting = StudySetting(ground, history, names, seeds, dict(constants or {}))
    return answer(setting, Bill.parse(gpus_per_server, price), progress, with_choices=with_choices)


class PlanCatalogue:
    """Plans that were made ahead of time.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._catalogue = Catalogue(Path(path))

    def plan(self, dead: str | Server | Iterable[str | Server] = ()) -> Planned:
        """The plan around some dead servers.

        Raises:
            UserError: there is none for so many.
        """
        return Planned(self._catalogue.look_up(tuple(read_servers(dead))).plan())


def make_catalogue(
    job: Job,
    path: str | os.PathLike[str],
    failures: int = 1,
    *,
    moves: int = 1000,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PlanCatalogue:
    """Plan every vector of failure counts into one file, on all processors.

    Args:
        job: what is trained.
        path: of the file, which ends in .zip.
        failures: the most servers that are dead at a time.
        moves: of the search for each plan.
        progress: told how many plans are made, of how many.

    Raises:
        UserError: it cannot be made.
    """
    effort = Effort((MaxMoves(moves),), f"{moves} moves")
    watch = lambda done, total, _: progress(done, total)  # noqa: E731 - the entry is of no interest here
    make_catalogue_file(Path(path), job, Mode(), failures, effort, "lowered", watch, processors())
    return PlanCatalogue(path)
