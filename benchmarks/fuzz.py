"""Random small jobs of every kind, planned: does the planner fail, is a plan illegal, or a bound too high?

    alike       one chunk per server
    placed      several chunks per server: V-shaped, interleaved, or anyhow
    written     pipelines that are alike, and given one by one
    unequal     pipelines with servers, speeds and micro-batches of their own; also servers that compute in another one
    unequal and dead   the same with one to three dead servers: a third of all

Every plan is judged by the checker, by its claims and by its bound. One of so many jobs is a tiny one, whose bounds are
held against the least value that OR-Tools finds. Each job is made from the seed and its number alone.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from harness.least_value import least_value
from recycle.errors import NoPlanError
from recycle.holding import with_own_layout
from recycle.job import Job, Server, Stage
from recycle.placement import PlacedPipeline, PlacedServer, Placement, parse_placement, standard
from recycle.plan.checker import check_plan
from recycle.plan.mode import ROUTINGS, Mode
from recycle.plan.plan import Form
from recycle.planner.anneal.search import search
from recycle.planner.claims import judge_claims
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.bounds import breakdown
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves

KINDS = ("alike", "placed", "written", "unequal", "unequal and dead", "unequal and dead")
"""Job number n is of kind n modulo their number."""


TOLD = 10.0
"""Seconds from one line about progress to the next."""


class Size(NamedTuple):
    """The most that a job has of each."""

    pipelines: int
    chunks: int
    micro_batches: int


SMALL, TINY = Size(4, 6, 4), Size(2, 3, 2)


def random_job(kind: str, size: Size, chance: random.Random) -> Job:
    """A job of a kind."""
    if kind.startswith("unequal"):
        return _unequal(size, chance)
    servers = chance.randint(1, max(1, size.chunks // 2))
    count = servers if kind == "alike" else chance.randint(servers, size.chunks)
    placement = standard(count)
    if kind == "placed" or chance.random() < 0.5:
        placement = _placement(servers, count, chance)
    stages = _stages(sum(map(len, placement)), chance)
    room = {chunk: _room(stages, mine) for mine in placement for chunk in mine}
    extra = {chunk: extra for mine in placement for extra in [chance.randint(0, 2 * room[mine[0]])] for chunk in mine}
    limited = tuple(
        msgspec.structs.replace(stage, limit=room[chunk] + extra[chunk]) for chunk, stage in enumerate(stages)
    )
    job = Job(
        chance.randint(1, size.pipelines),
        chance.randint(1, size.micro_batches),
        limited,
        _latencies(len(limited), chance),
        placement=placement,
    )
    return with_own_layout(job) if kind == "written" else job


def _placement(servers: int, count: int, chance: random.Random) -> Placement:
    if count == 2 * servers and chance.random() < 0.6:
        return parse_placement(chance.choice(("v-shaped", "interleaved:2")), servers)
    order = list(range(count))
    chance.shuffle(order)
    cuts = [0, *sorted(chance.sample(range(1, count), servers - 1)), count]
    return tuple(tuple(sorted(order[first:last])) for first, last in pairwise(cuts))


def _stages(count: int, chance: random.Random) -> tuple[Stage, ...]:
    alike = chance.random() < 0.5
    costs = [[chance.randint(0, 4) for _ in range(5)] for _ in range(count)]
    held = [chance.randint(1, 2) for _ in range(count)]
    released = [chance.randint(0, each) for each in held]
    taken = [chance.choice((0, chance.randint(0, 3))) for _ in held]
    stages = []
    for chunk in range(count):
        forward, gradient, weight, optimizer, reduction = costs[0 if alike else chunk]
        memory = (held[chunk], released[chunk], 100, 0, taken[chunk])
        stages.append(Stage(forward, gradient, weight, optimizer, reduction, *memory))
    return tuple(stages)


def _room(stages: Sequence[Stage], chunks: Sequence[int]) -> int:
    """The least memory of a server that holds some chunks."""
    taken = max(stages[chunk].taken_at_input_gradient for chunk in chunks)
    return sum(stages[chunk].held for chunk in chunks) + taken


def _latencies(count: int, chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randint(0, 2) for _ in range(count - 1))


def _unequal(size: Size, chance: random.Random) -> Job:
    stages = _stages(chance.randint(1, size.chunks), chance)
    layout = []
    for _ in range(chance.randint(2, max(2, size.pipelines))):
        placement = _placement(chance.randint(1, min(3, len(stages))), len(stages), chance)
        servers = [
            PlacedServer(
                mine,
                _room(stages, mine) + chance.randint(0, 4),
                chance.choice((100, 100, 100, 50, 70)),
            )
            for mine in placement
        ]
        layout.append(PlacedPipeline(chance.randint(1, size.micro_batches), tuple(servers)))
    if chance.random() < 0.3:
        # The last server of the second pipeline is listed in the first one; or its chunks have moved to the one before.
        first, second, *others = layout
        *kept, last = second.servers
        if chance.random() < 0.5:
            lent = msgspec.structs.replace(last, pipeline=1)
            layout = [
                PlacedPipeline(first.micro_batches, (*first.servers, lent)),
                PlacedPipeline(second.micro_batches, tuple(kept)),
                *others,
            ]
        elif kept:
            *kept, before = kept
            chunks = tuple(sorted((*before.chunks, *last.chunks)))
            widened = PlacedServer(chunks, before.limit + last.limit, before.speed)
            emptied = PlacedServer((), last.limit, last.speed)
            layout = [first, PlacedPipeline(second.micro_batches, (*kept, widened, emptied)), *others]
    most = max(each.micro_batches for each in layout)
    return Job(len(layout), most, stages, _latencies(len(stages), chance), layout=tuple(layout))


def random_dead(job: Job, least: int, chance: random.Random) -> tuple[Server, ...]:
    """Up to three dead servers, at least so many if they leave every chunk a live one."""
    servers = job.servers()
    for count in range(chance.randint(least, 3), 0, -1):
        for _ in range(4):
            dead = tuple(chance.sample(servers, min(count, len(servers))))
            try:
                job.dead_servers(dead).require_peers()
            except NoPlanError:
                continue
            return dead
    return ()


def random_mode(chance: random.Random) -> Mode:
    """Home routing in four of five, for it is the default."""
    routing = chance.choice(("home", "home", "home", *ROUTINGS))
    return Mode(chance.choice(("split", "fused")), chance.choice(("staggered", "global")), routing)


def faults(job: Job, dead: tuple[Server, ...], mode: Mode, moves: int, number: int) -> Iterator[str]:
    """What is wrong with the plan of a job."""
    form: Form = "compute" if number % 3 == 0 else "lowered"
    plan = make_plan(job, dead, mode, Effort((MaxMoves(moves),), f"{moves} moves"), form)
    for violation in check_plan(plan):
        yield f"illegal: {violation.message}"
    if plan.period < plan.bound:
        yield f"bound above period: {plan.bound} and {plan.period}"
    for violation in judge_claims(plan).violations:
        yield f"claim: {violation.message}"


def proof_faults(job: Job, dead: tuple[Server, ...], mode: Mode, moves: int) -> Iterator[str]:
    """What is wrong with the bounds of a tiny job, and with its plan's value."""
    problem = make_problem(job, dead, mode)
    found = search(problem, [MaxMoves(moves)]).progress.value
    least = least_value(problem, found)
    for bound in breakdown(problem):
        if bound.value > least:
            yield f"bound above optimum: {bound.value} by {bound.proof}, and {least}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs (default 0)")
    parser.add_argument("--moves", type=int, default=100, help="of each search (default 100)")
    parser.add_argument("--proofs", type=int, default=20, help="one of so many is a tiny one with a proof (default 20)")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, jobs {arguments.first} to {arguments.first + arguments.jobs - 1}", flush=True)
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    proved = 0
    began, due = time.thread_time(), time.monotonic() + TOLD
    for number in range(arguments.first, arguments.first + arguments.jobs):
        chance = random.Random(f"{arguments.seed}/{number}")
        kind = KINDS[number % len(KINDS)]
        tiny = number // len(KINDS) % arguments.proofs == 0
        job = random_job(kind, TINY if tiny else SMALL, chance)
        dead = random_dead(job, int(kind.endswith("dead")), chance) if kind != "unequal" else ()
        mode = random_mode(chance)
        tried[kind] += 1
        proved += tiny
        judges: list[Callable[[], Iterator[str]]] = [lambda: faults(job, dead, mode, arguments.moves, number)]  # noqa: B023 - used at once
        if tiny:
            judges.append(lambda: proof_faults(job, dead, mode, arguments.moves))  # noqa: B023
        try:
            found = [fault for judge in judges for fault in judge()]
        except Exception as error:
            found = [f"crash: {type(error).__name__}: {error}"]
        if time.monotonic() >= due:
            due += TOLD
            print(f"{tried.total()} of {arguments.jobs} jobs, {failed.total()} faults", file=sys.stderr, flush=True)
        for fault in found:
            failed[fault.partition(":")[0]] += 1
            names = ",".join(map(str, dead))
            print(f"job {number} ({kind}, dead {names or 'none'}, {mode}): {fault}", flush=True)
    for kind, count in tried.items():
        print(f"{kind}: {count}")
    for what in ("crash", "illegal", "bound above period", "claim", "bound above optimum"):
        print(f"{what}: {failed[what]}")
    print(f"{proved} held against the least value; {time.thread_time() - began:.0f} s of the processor")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
