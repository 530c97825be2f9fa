"""Peers: the live servers that hold the same chunks, and so sum the same gradients.

Where pipelines are alike, a server has the same peers for all its chunks: those of its stage. Where they are cut at
different places, it may have others for each chunk.
"""

from collections.abc import Sequence
from typing import NamedTuple

from recycle.holding import live_holders, placed
from recycle.job import Job, Server
from recycle.runtime.net.network import Group, Network


class ChunkPeers(NamedTuple):
    """Who holds some chunks.

    Attributes:
        chunks: of the server, rising, that the same live servers hold.
        servers: those, this one among them, by name.
        group: of them.
    """

    chunks: tuple[int, ...]
    servers: tuple[Server, ...]
    group: Group


def chunk_peers(job: Job, network: Network) -> tuple[ChunkPeers, ...]:
    """The peers of a server for each of its chunks, rising; all live servers ask for theirs.

    Raises:
        ConnectionLost: one of them did not come.
    """
    server, view = network.server, network.view
    live = live_holders(job, frozenset(view.servers))
    chunks: dict[tuple[Server, ...], list[int]] = {}
    for chunk in placed(job, server).chunks:
        chunks.setdefault(live[chunk], []).append(chunk)
    stage = view.peers(server.stage)
    found: list[ChunkPeers] = []
    # All ask in the order of chunks, so that nobody waits for somebody who waits for another group.
    for servers, mine in chunks.items():
        group = network.peers if servers == stage else network.group(f"chunk/{mine[0]}", servers)
        found.append(ChunkPeers(tuple(mine), servers, group))
    return tuple(found)


def peers_of_last(job: Job, peers: Sequence[ChunkPeers]) -> ChunkPeers | None:
    """Those of a server that hold the model's last chunk; None if it does not."""
    last = len(job.stages) - 1
    return next((each for each in peers if last in each.chunks), None)
