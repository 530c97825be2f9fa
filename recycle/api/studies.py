"""Studies, catalogues and ways of surviving, for notebooks and scripts."""

import os
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from recycle.api.planned import (
    PathLike,
    Planned,
    make_plan,
    read_count,
    read_effort,
    read_form,
    read_job,
    read_mode,
    read_path,
    read_seconds,
    read_seed,
    read_servers,
)
from recycle.errors import JobError, UserError
from recycle.faults.outages import load_outages
from recycle.job import Job, Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.plan.plan import Form
from recycle.planner.catalogue import make_catalogue as make_catalogue_file
from recycle.processors import pool, processors
from recycle.study.answer import Bill, StudyAnswer, answer
from recycle.study.buckets import Outcome
from recycle.study.compare import StudySetting, iteration_seconds, sampled
from recycle.study.constants import parse_constant
from recycle.study.failures import FailureHistory
from recycle.study.policies.rerouting import Rerouting
from recycle.study.rates import Ground, Rates
from recycle.study.registry import ALL, make_policy, parse_policies
from recycle.study.simulator import simulate as simulate_policy

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
        policies: ways of surviving by name, those of ``register_policy`` among them.
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
        with_choices: whether it also says what spares, other shapes, micro-batches and memory are worth.
        progress: told how far it is.

    Raises:
        UserError: something that was given cannot be used.
    """
    failures = _Failures(trace, mtbf_of_job, repair, servers)
    setting = _setting(job, policies, failures, iteration, layers, constants, seeds)
    gpus = None if gpus_per_server is None else read_count("gpus_per_server", gpus_per_server, 1)
    if not (price is None or isinstance(price, str)):
        raise UserError(f"price is {price!r}: give a text such as '2.5/gpuh' or '20/serverh'")
    return answer(setting, Bill.parse(gpus, price), progress, with_choices=with_choices)


def simulate(
    job: Job,
    policy: str = Rerouting.name,
    *,
    trace: PathLike | None = None,
    mtbf_of_job: str | float | None = None,
    repair: str | float | None = None,
    servers: int | None = None,
    iteration: str | float | None = None,
    layers: int | None = None,
    constants: Mapping[str, str | float] | None = None,
    seed: int = 0,
) -> Outcome:
    """What one way of surviving makes of one sample of the failures; arguments are those of ``compare_policies``.

    ``outcome.spans`` is the run over time, in rows as ``pandas.DataFrame`` takes them; ``outcome.buckets`` says where
    the servers' time went.

    Args:
        job: see above.
        policy: its name.
        trace: see above.
        mtbf_of_job: see above.
        repair: see above.
        servers: see above.
        iteration: see above.
        layers: see above.
        constants: see above.
        seed: of the sample.

    Raises:
        UserError: something that was given cannot be used.
    """
    failures = _Failures(trace, mtbf_of_job, repair, servers)
    setting = _setting(job, (policy,), failures, iteration, layers, constants, 1)
    rates = Rates(job, setting.ground.layers)
    chosen = make_policy(policy, setting.ground, rates, setting.sets[-1])
    return simulate_policy(chosen, job.pipelines, job.depth, sampled(setting, read_seed(seed)))


class _Failures(NamedTuple):
    """The failures that are asked for, as ``compare_policies`` describes them."""

    trace: PathLike | None
    mtbf_of_job: str | float | None
    repair: str | float | None
    servers: int | None

    def history(self, job: Job) -> FailureHistory:
        """All of them."""
        if self.mtbf_of_job is None:
            if self.repair is not None:
                raise UserError(f"repair is {self.repair!r}: a trace has its own repairs; give mtbf_of_job too")
            trace = SHIPPED if self.trace is None else os.fspath(read_path("trace", self.trace))
            servers = None if self.servers is None else read_count("servers", self.servers, 1)
            return FailureHistory.recorded(load_outages(trace, job, servers))
        for name, value in (("trace", self.trace), ("servers", self.servers)):
            if value is not None:
                raise UserError(f"{name} is {str(value)!r} and mtbf_of_job is {self.mtbf_of_job!r}: give one of them")
        if self.repair is None:
            raise UserError(f"mtbf_of_job is {self.mtbf_of_job!r}: give repair too, such as '4h'")
        between, repair = read_seconds("mtbf_of_job", self.mtbf_of_job), read_seconds("repair", self.repair)
        if not (between and repair):
            raise UserError(f"mtbf_of_job is {self.mtbf_of_job!r} and repair is {self.repair!r}: give more than 0")
        return FailureHistory.random(between, job.pipelines * job.depth, repair)


def _setting(
    job: Job,
    policies: str | Iterable[str],
    failures: _Failures,
    iteration: str | float | None,
    layers: int | None,
    constants: Mapping[str, str | float] | None,
    seeds: int,
) -> StudySetting:
    read_job(job).require_standard("a study")
    seeds = read_count("seeds", seeds, 1)
    history = failures.history(job)
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
    form: Form = "lowered",
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
        form: of the plans, as ``make_plan`` has it.
        progress: told how many plans are made, of how many.

    Raises:
        UserError: it cannot be made.
    """
    effort, form = read_effort(budget, moves, seed), read_form(form)
    most = read_count("failures", failures)
    target = read_path("path", path)
    watch = lambda done, total, _: progress(done, total)  # noqa: E731 - the entry is of no interest here
    make_catalogue_file(target, read_job(job), read_mode(mode), most, effort, form, watch, processors())
    return PlanCatalogue(target)


def sweep(
    job: Job,
    failures: Iterable[int] = range(4),
    *,
    budget: str | float = "2s",
    moves: int | None = None,
    seed: int = 0,
    mode: Mode | str = Mode(),  # noqa: B008 - immutable
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """What more and more failures cost: a row for each number of dead servers, as ``pandas.DataFrame`` takes them.

    The servers die in an order that the seed draws, each number of them the first of it, and never the last live one of
    a stage. All processors plan.

    Args:
        job: what is trained.
        failures: the numbers of dead servers.
        budget: processor time to search for each plan.
        moves: search for so many moves instead, which gives the same rows on every machine.
        seed: of the order and of the search.
        mode: what the plans may do, as ``make_plan`` has it.
        progress: told how many rows are done, of how many.

    Returns:
        For each: ``failures``, how many servers are dead; ``dead``, their names; ``period`` and ``bound`` of the plan
        around them, in the job's unit; ``throughput`` and ``of_before``, what it is worth against fault-free 1F1B and
        against the plan with all servers alive; ``alive``, the share of the servers that are.

    Raises:
        UserError: there are not so many servers to lose, or no plan exists.
    """
    read_job(job).require_even("a sweep")
    # In a worker it would be refused late, and not in this process.
    order = _deaths(job, read_effort(budget, moves, seed).seed)
    if not isinstance(failures, Iterable):
        raise UserError(f"failures is {failures!r}: give numbers of dead servers, such as range(4)")
    counts = [read_count("failures", count) for count in failures]
    for count in counts:
        if count > len(order):
            raise JobError(
                f"failures {count}: this job can lose {len(order)} servers at most, all but one of each stage"
            )
    servers = job.pipelines * job.depth
    rows: list[dict[str, Any]] = []
    make = partial(make_plan, job, budget=budget, moves=moves, seed=seed, mode=read_mode(mode))
    with pool(min(1 + len(counts), processors())) as executor:
        plans = executor.map(make, [order[:count] for count in (0, *filter(None, counts))])
        whole = next(plans)
        for count in counts:
            planned = next(plans) if count else whole
            period = max(planned.period, 1)
            rows.append(
                {
                    "failures": count,
                    "dead": ", ".join(planned.dead),
                    "period": planned.period,
                    "bound": planned.bound,
                    "throughput": planned.throughput,
                    "of_before": whole.period / period,
                    "alive": 1 - count / servers,
                }
            )
            progress(len(rows), len(counts))
    return rows


def _deaths(job: Job, seed: int) -> list[str]:
    """The servers of a job in the order in which they die; the last live one of each stage never does."""
    servers = job.servers()
    random.Random(seed).shuffle(servers)
    left = [job.pipelines] * job.depth
    order = []
    for server in servers:
        if left[server.stage] > 1:
            left[server.stage] -= 1
            order.append(str(server))
    return order
