"""Random jobs, failed sets, modes and legal plans for property tests."""

from itertools import pairwise

from hypothesis import strategies as st

from recycle.errors import NoPlanError
from recycle.job import Job, Server, Stage
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.mode import ROUTINGS, Mode
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem

TAKEN = st.one_of(st.just(0), st.integers(1, 4))
"""What an I takes on top of what F holds."""


@st.composite
def jobs(draw, pipelines=4, depth=4, micro_batches=5, cost=4):
    count = draw(st.integers(1, depth))
    stages = []
    for _ in range(count):
        held = draw(st.integers(1, 3))
        times = [draw(st.integers(0, cost)) for _ in range(5)]
        taken = draw(TAKEN)
        limit = held * draw(st.integers(1, 2 * count)) + draw(st.integers(0, held - 1)) + taken
        stages.append(Stage(*times, held, draw(st.integers(0, held)), limit, taken_at_input_gradient=taken))
    return Job(
        pipelines=draw(st.integers(1, pipelines)),
        micro_batches=draw(st.integers(1, micro_batches)),
        stages=tuple(stages),
        latency=tuple(draw(st.integers(0, 2)) for _ in range(count - 1)),
    )


@st.composite
def failed_sets(draw, job):
    """Failed servers that leave every stage a live one."""
    failed = []
    for stage in range(job.depth):
        alive = draw(st.integers(0, job.pipelines - 1))
        candidates = [Server(pipeline, stage) for pipeline in range(job.pipelines) if pipeline != alive]
        failed += draw(st.lists(st.sampled_from(candidates), max_size=2, unique=True)) if candidates else []
    return tuple(sorted(failed))


modes = st.builds(
    Mode,
    backward=st.sampled_from(["fused", "split"]),
    optimizer=st.sampled_from(["global", "staggered"]),
    routing=st.sampled_from(list(ROUTINGS)),
)


@st.composite
def problems(draw, **limits):
    job = draw(jobs(**limits))
    return make_problem(job, draw(failed_sets(job)), draw(modes))


@st.composite
def scheduled(draw, **limits):
    """A problem and legal compute instructions for it."""
    problem = draw(problems(**limits))
    return problem, instructions(problem, list_schedule(problem))


@st.composite
def placed_jobs(draw, pipelines=3, servers=3, chunks=6, micro_batches=4, cost=3):
    """Jobs whose servers hold any number of chunks, in any order."""
    depth = draw(st.integers(1, servers))
    count = draw(st.integers(depth, chunks))
    order = draw(st.permutations(range(count)))
    cuts = (
        [0, *sorted(draw(st.sets(st.integers(1, count - 1), min_size=depth - 1, max_size=depth - 1))), count]
        if count > 1
        else [0, 1]
    )
    placement = tuple(tuple(sorted(order[first:last])) for first, last in pairwise(cuts))
    held = [draw(st.integers(1, 3)) for _ in range(count)]
    taken = [draw(TAKEN) for _ in range(count)]
    limits = {}
    for mine in placement:
        least = sum(held[chunk] for chunk in mine) + max(taken[chunk] for chunk in mine)
        limits |= dict.fromkeys(mine, least + draw(st.integers(0, 2 * least)))
    stages = []
    for chunk in range(count):
        times = [draw(st.integers(0, cost)) for _ in range(5)]
        stages.append(Stage(*times, held[chunk], draw(st.integers(0, held[chunk])), limits[chunk], 0, taken[chunk]))
    return Job(
        pipelines=draw(st.integers(1, pipelines)),
        micro_batches=draw(st.integers(1, micro_batches)),
        stages=tuple(stages),
        latency=tuple(draw(st.integers(0, 2)) for _ in range(count - 1)),
        placement=placement,
    )


@st.composite
def placed_problems(draw, **limits):
    job = draw(placed_jobs(**limits))
    return make_problem(job, draw(failed_sets(job)), draw(modes))


@st.composite
def placed_and_scheduled(draw, **limits):
    """A problem whose servers hold several chunks, and legal compute instructions for it."""
    problem = draw(placed_problems(**limits))
    return problem, instructions(problem, schedule_chunks(problem, draw(st.sampled_from(POLICIES))))


@st.composite
def unequal_jobs(draw, chunks=3, most=3, pipelines=2):
    """Jobs whose pipelines have servers, speeds and micro-batches of their own."""
    count = draw(st.integers(1, chunks))
    stages = tuple(
        Stage(
            *(draw(st.integers(0, 3)) for _ in range(5)),
            held=draw(st.integers(1, 2)),
            released_at_input_gradient=0,
            limit=13,
            taken_at_input_gradient=draw(TAKEN),
        )
        for _ in range(count)
    )
    layout = []
    for _ in range(draw(st.integers(2, pipelines))):
        of = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        held = [tuple(chunk for chunk in range(count) if of[chunk] == server) for server in (0, 1)]
        servers = [
            PlacedServer(
                mine,
                sum(stages[chunk].held for chunk in mine)
                + max(stages[chunk].taken_at_input_gradient for chunk in mine)
                + draw(st.integers(0, 3)),
                draw(st.sampled_from((100, 100, 50, 70))),
            )
            for mine in held
            if mine
        ]
        layout.append(PlacedPipeline(draw(st.integers(1, most)), tuple(servers)))
    if draw(st.booleans()):
        # The last server of the second pipeline is listed in the first one.
        first, second, *others = layout
        *kept, last = second.servers
        lent = PlacedServer(last.chunks, last.limit, last.speed, 1)
        layout = [
            PlacedPipeline(first.micro_batches, (*first.servers, lent)),
            PlacedPipeline(second.micro_batches, tuple(kept)),
            *others,
        ]
    latency = tuple(draw(st.integers(0, 2)) for _ in range(count - 1))
    return Job(len(layout), max(each.micro_batches for each in layout), stages, latency, layout=tuple(layout))


def some_dead(draw, job):
    """Dead servers of any job that leave every chunk a live one; none in place of those that do not."""
    dead = [server for server in job.servers() if draw(st.integers(0, 3)) == 0]
    try:
        job.dead_servers(dead).require_peers()
    except NoPlanError:
        return []
    return dead
