"""Advice for one's own job: what each of its choices is worth, in server-hours a year."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from recycle.faults.outages import Outages
from recycle.job import Job
from recycle.planner.assemble import unlimited_baseline
from recycle.study.compare import StudySetting, dealt
from recycle.study.policies.ours import Rerouting, WithMemory
from recycle.study.policy import Policy
from recycle.study.rates import Ground, Rates
from recycle.study.simulator import simulate

YEAR_HOURS = 8_766.0


class Choice(msgspec.Struct, frozen=True):
    """One way to set something.

    Attributes:
        topic: what is set.
        choice: how.
        is_present: whether the job has it so.
        lost: server-hours a year that are paid for and leave no training, by re-routing.
        saved: server-hours a year that are saved against the present one; negative if it costs.
        model_only: whether it models what is not built.
    """

    topic: str
    choice: str
    is_present: bool
    lost: float
    saved: float
    model_only: bool = False


def advise(setting: StudySetting, advance: Callable[[str], None] = lambda _: None) -> tuple[Choice, ...]:
    """Every choice with its alternatives.

    Args:
        setting: the job and the trace; its policies are not asked.
        advance: told what is tried next.
    """
    base = _lost(setting, setting.ground.job, Rerouting)
    choices = []
    for topic, alternatives in _topics(setting):
        advance(topic)
        for name, (is_present, lost) in alternatives.items():
            hours = base if is_present else lost()
            model = topic == "copies in memory" and not is_present
            choices.append(Choice(topic, name, is_present, hours, base - hours, model))
    return tuple(choices)


Alternatives = Mapping[str, tuple[bool, Callable[[], float]]]


def _topics(setting: StudySetting) -> Iterator[tuple[str, Alternatives]]:
    job = setting.ground.job
    yield (
        "memory limit, in micro-batches at the first stage",
        {
            str(capacity): (capacity == job.stages[0].capacity, _with_job(setting, _with_capacity(job, more)))
            for more in (-2, -1, 0, 1, 2, 4)
            if (capacity := job.stages[0].capacity + more) >= 1
        },
    )
    yield (
        "micro-batches per pipeline",
        {
            str(number): (number == job.micro_batches, _with_job(setting, _with_micro_batches(job, number)))
            for number in sorted({max(1, job.micro_batches // 2), job.micro_batches, 2 * job.micro_batches})
        },
    )
    yield (
        "spare servers",
        {str(number): (number == 0, _with_spares(setting, number)) for number in (0, 1, 2, 4, 8)},
    )
    yield (
        "copies in memory",
        {
            "none": (True, lambda: 0.0),
            "of every stage, and layers that move": (False, lambda: _lost(setting, job, WithMemory)),
        },
    )
    yield (
        "rank order, where hosts have two servers",
        {
            "a host has one server": (True, lambda: 0.0),
            "stages first: a host has two stages of a pipeline": (False, _with_hosts(setting, apart=1)),
            "pipelines first: a host has two peers of a stage": (False, _with_hosts(setting, apart=job.depth)),
        },
    )


def _lost(
    setting: StudySetting,
    job: Job,
    kind: Callable[[Ground, Rates], Policy],
    order: Callable[[Outages], Outages] = lambda outages: outages,
) -> float:
    """Server-hours a year without training that is left, the mean over deals.

    Training is measured by the fault-free throughput of the job as it is: another job may be faster or slower.
    """
    speed = _speed(job) / _speed(setting.ground.job)
    ground = msgspec.structs.replace(setting.ground, job=job)
    rates = Rates(job, ground.layers)
    hours = 0.0
    for seed in range(setting.seeds):
        policy = kind(ground, rates)
        deal = StudySetting(ground, setting.outages, ("ours", f"spares:{policy.spares}"), 1)
        outcome = simulate(policy, job.pipelines, job.depth, order(dealt(deal, seed)))
        hours += (1 - outcome.value * speed) * outcome.paid * YEAR_HOURS / setting.seeds
    return hours


def _speed(job: Job) -> float:
    """Micro-batches per unit of time, fault-free."""
    return job.micro_batches / unlimited_baseline(job)


def _with_job(setting: StudySetting, job: Job) -> Callable[[], float]:
    return lambda: _lost(setting, job, Rerouting)


def _with_spares(setting: StudySetting, spares: int) -> Callable[[], float]:
    def kind(ground: Ground, rates: Rates) -> Policy:
        return Rerouting(ground, rates, spares=spares)

    return lambda: _lost(setting, setting.ground.job, kind)


def _with_hosts(setting: StudySetting, apart: int) -> Callable[[], float]:
    job = setting.ground.job
    return lambda: _lost(setting, job, Rerouting, lambda outages: _on_hosts(outages, job, apart))


def _on_hosts(outages: Outages, job: Job, apart: int) -> Outages:
    """The trace's places as hosts of two servers: every other place is left out, and its twin dies with each."""
    servers = job.pipelines * job.depth
    twins = [(place, place + apart) for place in range(servers) if (place // apart) % 2 == 0]
    host = {place: [server for server in pair if server < servers] for place, pair in enumerate(twins)}
    entries = [
        entry._replace(node=server) for entry in outages.entries if entry.node in host for server in host[entry.node]
    ]
    return msgspec.structs.replace(outages, entries=tuple(entries))


def _with_capacity(job: Job, more: int) -> Job:
    stages = tuple(
        msgspec.structs.replace(stage, limit=max(stage.held, stage.limit + more * stage.held)) for stage in job.stages
    )
    return msgspec.structs.replace(job, stages=stages)


def _with_micro_batches(job: Job, number: int) -> Job:
    return msgspec.structs.replace(job, micro_batches=number)
