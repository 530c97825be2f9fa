"""Random jobs, failed sets, modes and legal plans for property tests."""

from hypothesis import strategies as st

from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.plan.routing import ROUTING_RULES
from recycle.planner.greedy.list_scheduler import list_schedule
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import make_problem


@st.composite
def jobs(draw, pipelines=4, depth=4, micro_batches=5, cost=4):
    count = draw(st.integers(1, depth))
    stages = []
    for _ in range(count):
        held = draw(st.integers(1, 3))
        times = [draw(st.integers(0, cost)) for _ in range(5)]
        limit = held * draw(st.integers(1, 2 * count)) + draw(st.integers(0, held - 1))
        stages.append(Stage(*times, held, draw(st.integers(0, held)), limit))
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
    routing=st.sampled_from(list(ROUTING_RULES)),
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
