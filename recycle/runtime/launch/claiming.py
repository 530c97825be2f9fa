"""The keys of a run in etcd, for the processes that were started for it."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from recycle.control.board import Board
from recycle.control.claim import HeldClaim, find_claim, forget
from recycle.control.errors import StoreLost
from recycle.control.etcd_cluster import EtcdCluster
from recycle.job import Server
from recycle.runtime.launch.meeting import RollCall
from recycle.runtime.launch.outcome import ranks_at_end
from recycle.runtime.launch.start import Start
from recycle.runtime.net.endpoint import Endpoint


@contextmanager
def claimed(
    store: str | None, start: Start | None, name: str, silence: float, patience: float
) -> Iterator[EtcdCluster | None]:
    """Have keys in etcd for a start of a run; who has claimed them deletes them at the end.

    Args:
        store: where etcd is, as the user says it; None where the run has a store of its own.
        start: how this process was started with others, of which the first one claims; None where it is alone.
        name: of the run, where the user gives none and this process is alone.
        silence: seconds without a sign of life after which a run has ended.
        patience: how long to wait for the first process, in seconds.

    Yields:
        Where the keys are; None where the run has a store of its own.

    Raises:
        ControlError: etcd cannot be used, or a run of that name goes on.
    """
    if store is None:
        yield None
        return
    cluster = EtcdCluster.parse(store)
    if start is not None:
        name = f"{start.host}:{start.port}"
    cluster = msgspec.structs.replace(cluster, run=cluster.run or name)
    if start is not None and start.rank > 0:
        yield find_claim(cluster, _origin(start), patience)
        return
    claim = HeldClaim(cluster, _origin(start), silence)
    try:
        yield claim.cluster
    finally:
        claim.release()


def part(meeting: RollCall, status: int, endpoint: Endpoint, servers: Sequence[Server]) -> None:
    """Take leave at the end of a run that nobody supervises.

    Args:
        meeting: with the other processes.
        status: with which this one ends.
        endpoint: of the store.
        servers: of all processes, by rank.
    """
    meeting.leave(status)
    if meeting.start.rank == 0:
        meeting.dismiss(ranks_at_end(endpoint, servers))
    else:
        end_for_first(meeting, endpoint, servers)


def end_for_first(meeting: RollCall, endpoint: Endpoint, servers: Sequence[Server]) -> None:
    """At the end of a run whose first process is gone: delete its keys in etcd. One of those that are left does so.

    Args:
        meeting: with the other processes.
        endpoint: of the store.
        servers: of all processes, by rank.
    """
    if meeting.cluster is None:
        return
    with suppress(StoreLost):
        verdict = Board(endpoint.connect(), endpoint.token).verdicts.newest()
        last = [servers.index(each) for each in verdict.view.servers] if verdict is not None else []
        if min(last, default=0) == meeting.start.rank and not meeting.first_has_left():
            forget(meeting.cluster)


def _origin(start: Start | None) -> str:
    if start is None:
        return f"{socket.gethostname()} {os.getpid()}"
    return " ".join((start.host, str(start.port), start.job, start.attempt))
