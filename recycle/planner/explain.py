"""Why a plan takes as long as it does, what its failures cost, and what would help: by the bounds, without a search."""

from collections import Counter

import msgspec

from recycle.job import DeadServers, Job, Server
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.assemble import unlimited_baseline
from recycle.planner.model.bounds import Rule, lower_bound, period
from recycle.planner.model.problem import make_problem


class Remedy(msgspec.Struct, frozen=True):
    """Something that could shorten the iteration.

    Attributes:
        change: what to do.
        at_best: the bound on the period after it, in time units.
    """

    change: str
    at_best: int


class Explanation(msgspec.Struct, frozen=True):
    """What is to be said about a plan.

    Attributes:
        time: how long an iteration takes and how close that is to the bound.
        bound: which stage bounds it, and by which argument.
        cost: what the failures cost and why.
        remedies: what would help, the most first.
    """

    time: str
    bound: str
    cost: tuple[str, ...]
    remedies: tuple[Remedy, ...]


ARGUMENTS: dict[Rule, str] = {
    "work": "",
    "warm-up": "before the first gradient comes back it can only run as many forwards as its memory holds, and idles",
    "cool-down": "behind its last forward it waits for that micro-batch to come back, with too little left to do",
    "recycling": "its memory is full, so each forward waits until an earlier micro-batch has left",
    "last gradient": "its last gradient cannot come earlier, and the weight gradient is still to follow",
    "sandwich": "a busy stage behind it stretches its window, because what that stage runs first has passed here, and "
    "what it runs last must come back",
}


def explain(plan: Plan) -> Explanation:
    """Explain a legal plan.

    Raises:
        JobError: its servers hold several chunks.
    """
    job = plan.job
    job.require_standard("an explanation")
    clock = run_clock(plan.job, plan.mode, plan.programs)
    if plan.mode.optimizer == "global":
        update = clock.period - clock.makespan
        time = (
            f"An iteration takes {job.time_text(clock.period)}: {job.time_text(clock.makespan)} of compute, and "
            f"{job.time_text(update)} of optimizer."
        )
    else:
        time = (
            f"An iteration takes {job.time_text(clock.period)}; every stage steps as soon as its own gradients are "
            "ready."
        )
    above = clock.period - plan.bound
    if above > 0:
        time += f" That is {job.time_text(above)} above what is proven to be the least ({plan.gap:.1%});"
        time += " a longer search may shorten it."
    else:
        time += " That is proven to be the least."
    return Explanation(time, _argument(plan), _cost(plan, clock.period), _remedies(plan))


def _argument(plan: Plan) -> str:
    job = plan.job
    problem = make_problem(job, plan.dead, plan.mode)
    bound = lower_bound(problem)
    stage = job.stages[bound.stage]
    live, most = len(problem.live[bound.stage]), problem.least_share(bound.stage)
    work = most * stage.work
    text = (
        f"Stage {bound.stage} bounds it ({bound.rule}): {live} live {_servers(live)} for {problem.total} micro-batches,"
        f" so one of them executes {most}, which is {most} x {job.time_text(stage.work)} = {job.time_text(work)}"
    )
    rest = bound.value - work - (stage.update if problem.staggered else 0)
    if bound.rule != "work":
        text += f"; {ARGUMENTS[bound.rule]}: {job.time_text(rest)} more"
    if problem.staggered:
        text += f"; its optimizer takes {job.time_text(stage.update)}. Together {job.time_text(bound.value)}"
    elif bound.rule == "work" and rest:
        text += f"; filling and draining the stages around it takes {job.time_text(rest)}. "
        text += f"Together {job.time_text(bound.value)}"
    proven = period(problem, bound.value)
    if plan.bound > proven:
        prover = plan.provenance.bound_by.capitalize()
        text += f". {prover} has proven {job.time_text(plan.bound)}, more than this argument shows"
    return text + "."


def _cost(plan: Plan, now: int) -> tuple[str, ...]:
    if not plan.dead:
        return ("Nothing has failed.",)
    job = plan.job
    holder = {plan.roles.get(server, server): server for server in plan.programs}
    moved: dict[int, Counter[Server]] = {}
    for server, program in plan.programs.items():
        for each in program:
            if each.op is Op.F and Server(each.home, server.stage) not in holder:
                moved.setdefault(server.stage, Counter())[server] += 1
    lost, above = now - plan.baseline, now - plan.bound
    # Under tight memory 1F1B waits for room, and what it leaves idle then is no room for other work.
    wanted = min(unlimited_baseline(job), plan.baseline)
    lines = []
    for stage, counts in sorted(moved.items()):
        extra = max(counts.values()) * job.stages[stage].work
        idle = wanted - job.micro_batches * job.stages[stage].work - job.stages[stage].update
        dead = [str(server) for server in plan.dead if server.stage == stage]
        takers = ", ".join(f"{count} on {server}" for server, count in sorted(counts.items()))
        if extra > idle:
            verdict = f"{job.time_text(extra - idle)} too many"
        elif lost > 0:
            verdict = "enough room, but not all of it is where this plan could use it"
        elif above > 0:
            verdict = f"there is room for it, in a plan that is {plan.gap:.1%} above its bound"
        else:
            verdict = "it fits"
        lines.append(
            f"{' and '.join(dead)} dead: {counts.total()} micro-batches are re-routed ({_few(takers, counts)}), up to "
            f"{job.time_text(extra)} of work more per server, and the fault-free schedule leaves each "
            f"{job.time_text(idle)} idle: "
            f"{verdict}."
        )
    alive = len(plan.programs) / (job.pipelines * job.depth)
    baseline = job.time_text(plan.baseline)
    change = f"{job.time_text(abs(lost))} {'longer than' if lost > 0 else 'shorter than'}" if lost else "as long as"
    other = (
        f" and {wanted / max(now, 1):.1%} of 1F1B with the memory that it wants ({job.time_text(wanted)}),"
        if wanted < plan.baseline
        else ""
    )
    lines.append(
        f"The iteration is {change} {job.baseline_name} ({baseline}): {plan.throughput:.1%} of its throughput{other} "
        f"with {alive:.1%} of the servers."
    )
    return tuple(lines)


def _few(text: str, counts: Counter[Server]) -> str:
    return (
        text if len(counts) <= 8 else f"{min(counts.values())} to {max(counts.values())} on each of {len(counts)} peers"
    )


def _servers(count: int) -> str:
    return "server" if count == 1 else "servers"


def _remedies(plan: Plan) -> tuple[Remedy, ...]:
    job, mode, dead = plan.job, plan.mode, plan.dead
    now = _least(job, dead, mode)
    found: list[Remedy] = []
    for change, other in (
        ("split the backward pass", Mode("split", mode.optimizer, mode.routing)),
        ("stagger the optimizer", Mode(mode.backward, "staggered", mode.routing)),
        ("split the backward pass and stagger the optimizer", Mode("split", "staggered", mode.routing)),
    ):
        changed = (other.backward != mode.backward) + (other.optimizer != mode.optimizer)
        remedy = Remedy(change, _least(job, dead, other))
        if changed == 1 + change.count(" and ") and all(remedy.at_best < each.at_best for each in found):
            found.append(remedy)
    found += _memory(job, dead, mode, now)
    helpful = sorted((each for each in found if each.at_best < now), key=lambda each: each.at_best)
    return tuple(helpful) + _fewer(plan, now)


def _least(job: Job, dead: DeadServers, mode: Mode) -> int:
    problem = make_problem(job, dead, mode)
    return period(problem, lower_bound(problem).value)


def _memory(job: Job, dead: DeadServers, mode: Mode, now: int) -> list[Remedy]:
    """More memory at one stage, or at every stage where no single one is enough: the least that has the full effect."""
    found: list[Remedy] = []
    for stages in [*([stage] for stage in range(job.depth)), list(range(job.depth))]:
        most = job.pipelines * job.micro_batches
        best = _least(_with_capacity(job, stages, most), dead, mode)
        if best >= now or (len(stages) > 1 and any(each.at_best <= best for each in found)):
            continue
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if _least(_with_capacity(job, stages, middle), dead, mode) == best:
                high = middle
            else:
                low = middle + 1
        where = f"stage {stages[0]}" if len(stages) == 1 else "every stage"
        found.append(Remedy(f"memory for {low} micro-batches at {where}", best))
    return found


def _with_capacity(job: Job, stages: list[int], capacity: int) -> Job:
    """The job with room for at least so many micro-batches on each server of some stages."""
    changed = tuple(
        msgspec.structs.replace(stage, limit=max(stage.limit, stage.needs(capacity))) if number in stages else stage
        for number, stage in enumerate(job.stages)
    )
    return msgspec.structs.replace(job, stages=changed)


def _fewer(plan: Plan, now: int) -> tuple[Remedy, ...]:
    """Fewer micro-batches, where that takes less time for each: it can even out the shares of the live servers."""
    job = plan.job
    best: tuple[float, int, int] | None = None
    for micro_batches in range(max(1, job.micro_batches // 2), job.micro_batches):
        least = _least(msgspec.structs.replace(job, micro_batches=micro_batches), plan.dead, plan.mode)
        if least * job.micro_batches < now * micro_batches and (best is None or least / micro_batches < best[0]):
            best = (least / micro_batches, micro_batches, least)
    if best is None:
        return ()
    each, micro_batches, least = best
    pace = f"{job.time_text(each)} for each instead of {job.time_text(now / job.micro_batches)}"
    change = f"{micro_batches} micro-batches per iteration: {pace}"
    return (Remedy(change, least),)
