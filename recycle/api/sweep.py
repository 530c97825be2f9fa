"""What more and more failures cost."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from recycle.api.planned import make_plan, read_count, read_effort, read_job, read_mode
from recycle.errors import JobError, UserError
from recycle.job import Job
from recycle.plan.mode import Mode
from recycle.processors import pool, processors


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
