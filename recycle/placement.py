"""Placements: which chunks of the model each server of a pipeline holds. Pure data; a job has one.

A chunk is a run of consecutive layers, the thing that an instruction names. Chunks are numbered in the order of the
model. All pipelines place them alike, unless each is given its own servers: then chunks are the common refinement of
all pipelines' cuts.
"""

import re
from typing import TypeAlias

import msgspec

from recycle.errors import JobError

Placement: TypeAlias = tuple[tuple[int, ...], ...]
"""Per server of a pipeline, by its place in it, the chunks that it holds, rising."""

LARGEST_MODEL = 100_000
"""Chunks that a model has at most."""

FULL_SPEED = 100
"""The speed, in percent, of a server whose costs are those of its chunks."""


class PlacedServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One server of a pipeline that has its own.

    Attributes:
        chunks: that it holds, rising; none where it is dead and its chunks have moved to others.
        limit: memory for activations.
        speed: in percent of a server whose costs are those of its chunks; it divides them, rounded up.
        pipeline: the one that it computes in, where that is another than the one that it is listed in.
    """

    chunks: tuple[int, ...]
    limit: int
    speed: int = FULL_SPEED
    pipeline: int | None = None

    def time(self, cost: int) -> int:
        """How long something takes here."""
        return -(-cost * FULL_SPEED // self.speed)


class PlacedPipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pipeline of those that are not alike.

    Attributes:
        micro_batches: that it brings in each iteration; none where no server computes in it.
        servers: that are named after it, in their order; some may compute in other pipelines.
    """

    micro_batches: int
    servers: tuple[PlacedServer, ...]

    @property
    def placement(self) -> Placement:
        """The chunks of each server."""
        return tuple(server.chunks for server in self.servers)


Layout: TypeAlias = tuple[PlacedPipeline, ...]
"""All pipelines of a job in which they are not alike."""


def crews(layout: Layout) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Per pipeline, the servers that compute in it, by their first chunk: where each is listed, and its place there."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in layout]
    for number, pipeline in enumerate(layout):
        for place, server in enumerate(pipeline.servers):
            if server.chunks:
                found[number if server.pipeline is None else server.pipeline].append((server.chunks[0], number, place))
    return tuple(tuple((number, place) for _, number, place in sorted(crew)) for crew in found)


FORMS = "standard, v-shaped, interleaved:N, consecutive:N, or a list of the chunks of each server"


def standard(servers: int) -> Placement:
    """One chunk per server, in order."""
    return tuple((place,) for place in range(servers))


def interleaved(servers: int, chunks: int) -> Placement:
    """Server s of P holds the chunks s, s + P, s + 2P, ... (Narayanan et al., Megatron-LM, 2021).

    Args:
        servers: P, of one pipeline.
        chunks: of each server.
    """
    return tuple(tuple(place + servers * turn for turn in range(chunks)) for place in range(servers))


def consecutive(servers: int, chunks: int) -> Placement:
    """Server s holds the chunks from sN on, N in all: as one chunk of as many layers, which can move one by one.

    Args:
        servers: of one pipeline.
        chunks: N, of each server.
    """
    return tuple(tuple(range(place * chunks, (place + 1) * chunks)) for place in range(servers))


def v_shaped(servers: int) -> Placement:
    """Server s of P holds the chunks s and 2P - 1 - s: down the pipeline and up again (Qi et al., 2024)."""
    return tuple((place, 2 * servers - 1 - place) for place in range(servers))


def parse_placement(text: str, servers: int) -> Placement:
    """The placement that a short form names.

    Args:
        text: ``standard``, ``v-shaped``, or ``interleaved:N`` or ``consecutive:N`` with N chunks per server.
        servers: of one pipeline.

    Raises:
        JobError: the text names none.
    """
    if text == "standard":
        return standard(servers)
    if text == "v-shaped":
        return v_shaped(servers)
    match = re.fullmatch(r"(interleaved|consecutive):([0-9]{1,3})", text)
    if match is None or not int(match[2]):
        raise JobError(f"placement {text!r}: expected {FORMS}")
    if servers * int(match[2]) > LARGEST_MODEL:
        raise JobError(f"placement {text!r}: {servers} stages have more than {LARGEST_MODEL} chunks then; take fewer")
    return {"interleaved": interleaved, "consecutive": consecutive}[match[1]](servers, int(match[2]))


def require_placement(placement: Placement, chunks: int) -> None:
    """Refuse a placement that does not hold every chunk once.

    Args:
        placement: what to judge.
        chunks: how many the model has.

    Raises:
        JobError: a server holds nothing, or its chunks out of order; or a chunk is held by nobody, or twice.
    """
    for place, held in enumerate(placement):
        if not held:
            raise JobError(f"placement: server {place} of a pipeline holds no chunk; leave it out")
        if list(held) != sorted(set(held)):
            raise JobError(f"placement: server {place} holds {list(held)}; list its chunks rising, each once")
    found = sorted(chunk for held in placement for chunk in held)
    if found != list(range(chunks)):
        wrong = next(chunk for chunk in [*range(chunks), *found] if found.count(chunk) != 1 or chunk >= chunks)
        where = "no server holds it" if wrong not in found else f"{found.count(wrong)} servers hold it"
        if wrong >= chunks:
            where = f"the model has the chunks 0 to {chunks - 1}"
        raise JobError(f"placement: chunk {wrong}: {where}; every chunk has one server in each pipeline")


def require_layout(layout: Layout, pipelines: int, micro_batches: int, count: int) -> None:
    """Refuse pipelines of their own that do not hold the model.

    Args:
        layout: what to judge.
        pipelines: how many the job has.
        micro_batches: the most that one of them brings.
        count: chunks of the model.

    Raises:
        JobError: something of that.
    """
    most = max((pipeline.micro_batches for pipeline in layout), default=0)
    if (len(layout), most) != (pipelines, micro_batches):
        raise JobError(
            f"layout: {len(layout)} pipelines of up to {most} micro-batches, and the job says {pipelines} of up to "
            f"{micro_batches}; give the same"
        )
    for number, pipeline in enumerate(layout):
        for place, server in enumerate(pipeline.servers):
            where = f"of server {place} of pipeline {number}"
            if server.pipeline is not None and (server.pipeline == number or not 0 <= server.pipeline < pipelines):
                raise JobError(
                    f"pipeline {where} is {server.pipeline}: name another one of the {pipelines}, or leave it out"
                )
            for chunk in server.chunks:
                if not 0 <= chunk < count:
                    raise JobError(f"chunks {where}: {chunk} is none; the model has the chunks 0 to {count - 1}")
            if server.speed < 1:
                raise JobError(f"speed {where} is {server.speed}: it is in percent, and the least is 1")
    for number, (pipeline, crew) in enumerate(zip(layout, crews(layout), strict=True)):
        if not crew and not pipeline.micro_batches:
            continue
        if pipeline.micro_batches < 1:
            raise JobError(f"micro_batches of pipeline {number} is {pipeline.micro_batches}: the least is 1")
        try:
            require_placement(tuple(layout[row].servers[place].chunks for row, place in crew), count)
        except JobError as error:
            raise JobError(f"pipeline {number}: {error}") from error


def placement_text(placement: Placement) -> str:
    """A placement in its short form, or as a list where it has none."""
    servers = len(placement)
    if placement == standard(servers):
        return "standard"
    if placement == v_shaped(servers):
        return "v-shaped"
    if placement == interleaved(servers, len(placement[0])):
        return f"interleaved:{len(placement[0])}"
    if placement == consecutive(servers, len(placement[0])):
        return f"consecutive:{len(placement[0])}"
    return str([list(held) for held in placement])
