"""What the job's own choices are worth: spare servers, and another shape on the same servers."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import suppress

import msgspec

from recycle.errors import JobError
from recycle.job import Job
from recycle.placing.layers import layers_of
from recycle.planner.assemble import unlimited_baseline
from recycle.processors import pool, processors
from recycle.study.compare import YEAR_HOURS, StudySetting
from recycle.study.policies.rerouting import Rerouting
from recycle.study.rates import Rates
from recycle.study.simulator import simulate

SPARE = "spare servers"
SHAPE = "pipelines x stages x micro-batches on these servers"

SPARES = (0, 1, 2, 3, 4, 6, 8)


class Alternative(msgspec.Struct, frozen=True):
    """One way to set something.

    Attributes:
        topic: what is set.
        choice: how.
        job: with it set so.
        is_present: whether the job has it so.
        spares: servers in reserve.
        scale: units of the job's time in one of the job as it is.
    """

    topic: str
    choice: str
    job: Job
    is_present: bool = False
    spares: int = 0
    scale: int = 1


class Choice(msgspec.Struct, frozen=True):
    """What an alternative is worth, by re-routing, the mean over the samples.

    Attributes:
        topic: what is set.
        choice: how.
        is_present: whether the job has it so.
        goodput: by the fault-free throughput of the job as it is; another shape may have another one.
        lost: server-hours a year that are paid for and leave no training.
        saved: server-hours a year that are saved against the present one; negative if it costs.
    """

    topic: str
    choice: str
    is_present: bool
    goodput: float
    lost: float
    saved: float


def weigh_choices(setting: StudySetting, advance: Callable[[str], None] = lambda _: None) -> tuple[Choice, ...]:
    """Every choice with its alternatives, in parallel.

    Args:
        setting: the job and its failures; its policies are not asked.
        advance: told how far it is.
    """
    alternatives = list(_alternatives(setting))
    groups: dict[Job, list[Alternative]] = {}
    for each in alternatives:
        groups.setdefault(each.job, []).append(each)
    found: dict[Alternative, tuple[float, float]] = {}
    with pool(min(len(groups), processors())) as executor:
        pending = {executor.submit(_weigh, setting, group): group for group in groups.values()}
        for number, done in enumerate(as_completed(pending), 1):
            found.update(zip(pending[done], done.result(), strict=True))
            advance(f"choices for the job: {number} of {len(groups)} jobs")
    present = next(found[each][1] for each in alternatives if each.is_present)
    return tuple(
        Choice(each.topic, each.choice, each.is_present, found[each][0], found[each][1], present - found[each][1])
        for each in alternatives
    )


def _alternatives(setting: StudySetting) -> Iterator[Alternative]:
    job, layers = setting.ground.job, setting.ground.layers
    for number in SPARES:
        yield Alternative(SPARE, str(number), job, number == 0, spares=number)
    for other in _shapes(job, layers):
        text = f"{other.pipelines} x {other.depth} x {other.micro_batches}"
        scale = 1 if other == job else layers
        yield Alternative(SHAPE, text, other, other == job, scale=scale)


def _shapes(job: Job, layers: int) -> Iterator[Job]:
    """The job, and those of the same servers, layers and batch with half and twice as many pipelines."""
    total, servers = job.pipelines * job.micro_batches, job.pipelines * job.depth
    for pipelines in (job.pipelines / 2, job.pipelines, job.pipelines * 2):
        if pipelines == job.pipelines:
            yield job
            continue
        depth, micro_batches = servers / pipelines, total / pipelines
        whole = all(number >= 1 and number == int(number) for number in (pipelines, depth, micro_batches))
        if whole and layers % depth == 0 and layers % job.depth == 0:
            # Layers may be too many to be moved one by one, or their costs too large for a job.
            with suppress(JobError):
                other = _with_shape(job, layers, int(pipelines), int(depth), int(micro_batches))
                if other is not None:
                    yield other


def _with_shape(job: Job, layers: int, pipelines: int, depth: int, micro_batches: int) -> Job | None:
    """Another cut of the same layers; None if a server has not the memory for one micro-batch.

    As many units of time are one of the job's, so that costs are whole numbers.
    """
    model, each = layers_of(job, layers), layers // depth
    runs = [(first, first + each) for first in range(0, layers, each)]
    if any(model.needs(run, 1) > model.memory for run in runs):
        return None
    return msgspec.structs.replace(
        job,
        pipelines=pipelines,
        micro_batches=micro_batches,
        stages=tuple(map(model.stage, runs)),
        latency=(model.latency,) * (depth - 1),
    )


def _weigh(setting: StudySetting, group: Sequence[Alternative]) -> list[tuple[float, float]]:
    """Goodput, and server-hours lost a year, of alternatives of one job."""
    job = group[0].job
    old = setting.ground.job
    longer = unlimited_baseline(job) / group[0].scale / unlimited_baseline(old)
    ground = msgspec.structs.replace(setting.ground, job=job, iteration=setting.ground.iteration * longer)
    rates = Rates(job, ground.layers)
    results = []
    for each in group:
        goodputs = []
        for seed in range(setting.seeds):
            policy = Rerouting(ground, rates, setting.sets[-1], each.spares)
            outages = setting.history.sample(job.pipelines * job.depth, each.spares, seed)
            goodputs.append(simulate(policy, job.pipelines, job.depth, outages).goodput / longer)
        goodput = sum(goodputs) / len(goodputs)
        results.append((goodput, (1 - goodput) * (job.pipelines * job.depth + each.spares) * YEAR_HOURS))
    return results
