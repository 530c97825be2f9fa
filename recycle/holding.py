"""Who holds which chunks, and what they cost there: the one place that knows servers' own chunks, limits and speeds."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from recycle.job import Job, Server, Stage
from recycle.placement import Layout, PlacedPipeline, PlacedServer


def placed(job: Job, server: Server) -> PlacedServer:
    """What a server holds, its memory for activations and its speed."""
    if isinstance(job.layout, msgspec.UnsetType):
        return PlacedServer(job.chunks[server.stage], job.limit(server.stage))
    return job.layout[server.pipeline].servers[server.stage]


def own_layout(job: Job) -> Layout:
    """The servers of each pipeline, also where all pipelines are alike."""
    if not isinstance(job.layout, msgspec.UnsetType):
        return job.layout
    servers = tuple(PlacedServer(chunks, job.limit(place)) for place, chunks in enumerate(job.chunks))
    return (PlacedPipeline(job.micro_batches, servers),) * job.pipelines


def with_own_layout(job: Job) -> Job:
    """The same job, whose servers can hold other chunks later."""
    return with_layout(job, own_layout(job))


def with_layout(job: Job, layout: Layout | None) -> Job:
    """A job whose pipelines have servers of their own.

    Args:
        job: what is trained.
        layout: which server holds what, with as many pipelines; None for the job as it is.
    """
    if layout is None or layout == job.layout:
        return job
    most = max(pipeline.micro_batches for pipeline in layout)
    return msgspec.structs.replace(job, micro_batches=most, placement=msgspec.UNSET, layout=layout)


def costs_on(job: Job, server: Server) -> dict[int, Stage]:
    """What each chunk of a server costs there: at its speed."""
    here = placed(job, server)
    return {
        chunk: msgspec.structs.replace(
            stage,
            forward=here.time(stage.forward),
            input_gradient=here.time(stage.input_gradient),
            weight_gradient=here.time(stage.weight_gradient),
            optimizer=here.time(stage.optimizer),
        )
        for chunk in here.chunks
        for stage in (job.stages[chunk],)
    }


def holders(job: Job) -> tuple[Mapping[int, Server], ...]:
    """Per chunk and pipeline, the server that holds it and computes there; pipelines rise."""
    placements = job.placements
    found: list[dict[int, Server]] = [{} for _ in job.stages]
    for pipeline, crew in enumerate(job.crews):
        for server in crew:
            for chunk in placements[server.pipeline][server.stage]:
                found[chunk][pipeline] = server
    return tuple(found)


def longest_update(job: Job, dead: Collection[Server]) -> int:
    """The longest time that a live server needs for its reductions and optimizer steps."""
    if job.even:
        # Each place of a pipeline has a live server, so that those of one pipeline stand for all.
        servers = [Server(0, place) for place in range(job.depth)]
    else:
        servers = [server for server in job.servers() if server not in dead]
    return max(least_updates(job, server) for server in servers)


def least_updates(job: Job, server: Server) -> int:
    """The least time from the end of a server's compute to that of its last optimizer step, where stages step alone."""
    return sum(stage.update for stage in costs_on(job, server).values())


def live_holders(job: Job, live: Collection[Server]) -> tuple[tuple[Server, ...], ...]:
    """Per chunk, the live servers that hold it, by name."""
    return tuple(tuple(sorted(each for each in held.values() if each in live)) for held in holders(job))


def units(job: Job) -> range:
    """What servers hold of a model so that all who hold any of it hold the same of it.

    They are stages where pipelines are alike, and chunks where they are not.
    """
    return range(job.depth if job.even else len(job.stages))


def units_of(job: Job, server: Server) -> tuple[int, ...]:
    """The units that a server holds, rising."""
    return (server.stage,) if job.even else placed(job, server).chunks


def lone_units(job: Job, live: Collection[Server]) -> dict[int, Server]:
    """The units that one live server holds and no other one, each with that server; units rise."""
    held: dict[int, list[Server]] = {unit: [] for unit in units(job)}
    for each in live:
        for unit in units_of(job, each):
            held[unit].append(each)
    return {unit: found[0] for unit, found in held.items() if len(found) == 1}


def units_text(job: Job, numbers: Sequence[int]) -> str:
    """What some units are called."""
    word = "stage" if job.even else "chunk"
    return f"{word}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def sole_units(job: Job, server: Server, live: Collection[Server]) -> tuple[int, ...]:
    """The units of a server that no live one holds."""
    held = {unit for each in live for unit in units_of(job, each)}
    return tuple(unit for unit in units_of(job, server) if unit not in held)
