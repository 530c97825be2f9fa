"""The worked example, and plans made quickly for tests."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.job_files import encode_job
from recycle.job import Job, Server, Stage
from recycle.jobfile import load_job
from recycle.placement import PlacedPipeline, PlacedServer, parse_placement
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Instruction
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan, Provenance
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

DEAD = (Server(1, 2),)
QUICK = Effort((MaxMoves(2000),), "2000 moves")


def job_file(folder: Path, **keys: object) -> Path:
    """Write the worked example's shape as a job file, with an optimizer step of 3 slots.

    Args:
        folder: where to.
        keys: of a job file, beside these or in their place; ``limit``, ``optimizer`` and the like are in their tables.
    """
    path = folder / "-".join(["job", *(f"{key}-{value}" for key, value in keys.items())]).replace("/", "-")
    path = path.with_name(re.sub(r"[^\w.-]", "-", path.name) + ".toml")
    path.write_bytes(
        encode_job(load_job(None, {"pipelines": 3, "stages": 4, "micro_batches": 6, "optimizer": 3, **keys}))
    )
    return path


def placed_job(
    form: str,
    pipelines: int = 2,
    servers: int = 2,
    micro_batches: int = 4,
    limit: int = 4,
    latency: int = 0,
    costs: tuple[int, int, int] = (1, 1, 1),
    optimizer: int = 1,
) -> Job:
    """Servers of several chunks, by the short form of their placement, and what F, I and W of each chunk take."""
    placement = parse_placement(form, servers)
    count = sum(map(len, placement))
    stages = (Stage(*costs, optimizer, 0, 1, 0, limit),) * count
    return Job(pipelines, micro_batches, stages, (latency,) * (count - 1), "placed", placement=placement)


def uneven_job(slow: int = 100) -> Job:
    """Two servers beside three, whose cuts make four chunks, with five micro-batches and three; and one may be slow."""
    short = PlacedPipeline(5, (PlacedServer((0, 1), 8), PlacedServer((2, 3), 8)))
    long = PlacedPipeline(3, (PlacedServer((0,), 4), PlacedServer((1, 2), 8, slow), PlacedServer((3,), 4)))
    return Job(2, 5, (Stage(1, 1, 1, 1, 0, 1, 0, 8),) * 4, (0,) * 3, "uneven", layout=(short, long))


def paper_job(
    limit: int | Sequence[int] = 4,
    released: int = 1,
    pipelines: int = 3,
    stages: int = 4,
    micro_batches: int = 6,
    taken: int = 0,
) -> Job:
    """The paper's example: F, I and W take a slot each, the optimizer three."""
    limits = [limit] * stages if isinstance(limit, int) else limit
    return Job(
        pipelines=pipelines,
        micro_batches=micro_batches,
        stages=tuple(Stage(1, 1, 1, 3, 0, 1, released, each, 0, taken) for each in limits),
        latency=(0,) * (stages - 1),
        name="paper",
    )


def programs_of(rows: Mapping[str, str]) -> dict[Server, tuple[Instruction, ...]]:
    """Programs of servers, by their names, from the texts of their instructions."""
    return {Server.parse(name): tuple(map(Instruction.parse, row.split())) for name, row in rows.items()}


def plan_of(
    job: Job,
    failed: Iterable[Server],
    mode: Mode,
    programs: Mapping[Server, Sequence[Instruction]],
    form: Form = "compute",
) -> Plan:
    """A plan of some programs, its figures by the clock."""
    clock = run_clock(job, mode, programs)
    lists = {server: tuple(program) for server, program in programs.items()}
    provenance = Provenance("test", 0, "none", "nobody", "bounded")
    figures = (clock.makespan, clock.period, 0, clock.period)
    return Plan(job, job.dead_servers(failed), {}, mode, form, *figures, provenance, lists)


def plan_around(job: Job, *failed: str, mode: Mode = Mode()) -> Plan:  # noqa: B008 - immutable
    return make_plan(job, [Server.parse(each) for each in failed], mode, QUICK)


def paper_plan(form: Form = "lowered", failed: Sequence[Server] = DEAD, **changes: int) -> Plan:
    return make_plan(paper_job(**changes), failed, Mode(), QUICK, form)
