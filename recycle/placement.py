"""Placements: which chunks of the model each server of a pipeline holds. Pure data; a job has one.

A chunk is a run of consecutive layers, the thing that an instruction names. Chunks are numbered in the order of the
model. All pipelines place them alike.
"""

import re
from typing import TypeAlias

from recycle.errors import JobError

Placement: TypeAlias = tuple[tuple[int, ...], ...]
"""Per server of a pipeline, by its place in it, the chunks that it holds, rising."""

FORMS = "standard, v-shaped, interleaved:N, or a list of the chunks of each server"


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


def v_shaped(servers: int) -> Placement:
    """Server s of P holds the chunks s and 2P - 1 - s: down the pipeline and up again (Qi et al., 2024)."""
    return tuple((place, 2 * servers - 1 - place) for place in range(servers))


def parse_placement(text: str, servers: int) -> Placement:
    """The placement that a short form names.

    Args:
        text: ``standard``, ``v-shaped`` or ``interleaved:N`` with N chunks per server.
        servers: of one pipeline.

    Raises:
        JobError: the text names none.
    """
    if text == "standard":
        return standard(servers)
    if text == "v-shaped":
        return v_shaped(servers)
    match = re.fullmatch(r"interleaved:(\d{1,3})", text)
    if match is None or not int(match[1]):
        raise JobError(f"placement {text!r}: expected {FORMS}")
    return interleaved(servers, int(match[1]))


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


def placement_text(placement: Placement) -> str:
    """A placement in its short form, or as a list where it has none."""
    servers = len(placement)
    if placement == standard(servers):
        return "standard"
    if placement == v_shaped(servers):
        return "v-shaped"
    if placement == interleaved(servers, len(placement[0])):
        return f"interleaved:{len(placement[0])}"
    return str([list(held) for held in placement])
