"""The keys of a run in etcd, for the processes that were started for it."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from recycle.control.host.claim import HeldClaim, find_claim, forget
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.errors import EndedAtOnce
from recycle.job import Server
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.start import Start
from recycle.runtime.launch.process.outcome import goes_on, ranks_at_end
from recycle.runtime.net.endpoint import Endpoint

OTHERS_GO_ON = "others go on with the run"
"""A note of an error that ends no more than this process."""


class LeftEarly(Exception):
    """Who has claimed a run ends, and others go on."""


@contextmanager
def claimed(
    cluster: EtcdCluster | None,
    start: Start | None,
    name: str,
    silence: float,
    patience: float,
    say: Callable[[str], None],
    *,
    returns: bool = False,
) -> Iterator[EtcdCluster | None]:
    """Have keys in etcd for a start of a run; who has claimed them deletes them at its end, if it is there then.

    Args:
        cluster: where etcd is, as the user says; None where the run has a store of its own.
        start: how this process was started with others, of which the first one claims; None where it is alone.
        name: of the run, where the user gives none and this process is alone.
        silence: seconds without a sign of life after which a run has ended.
        patience: how long to wait for the first process, in seconds.
        say: tells the user what this process waits for.
        returns: whether a first process that comes again, to a run that goes on without it, takes part in that.

    Yields:
        Where the keys are; None where the run has a store of its own.

    Raises:
        ControlError: etcd cannot be used, or a run of that name goes on.
    """
    if cluster is None:
        yield None
        return
    if start is not None:
        name = f"{start.host}:{start.port}"
    cluster = msgspec.structs.replace(cluster, run=cluster.run or name)
    if cluster.tells_password and (start is None or start.rank == 0):
        say("etcd's password goes over the network in clear, for anybody who listens: give etcds:// and ?ca=FILE")
    if start is not None and start.rank > 0:
        yield find_claim(cluster, _origin(start), patience, say)
        return
    claim = HeldClaim(cluster, _origin(start), silence, returns=returns, say=say)
    over = True
    try:
        yield claim.cluster
    except (EndedAtOnce, LeftEarly):
        # Others go on, or may; the last of them deletes the keys.
        over = start is None
        raise
    except Exception as error:
        # So they do without a process that comes back and is refused.
        over = not claim.returned and OTHERS_GO_ON not in getattr(error, "__notes__", ())
        raise
    except BaseException:
        # As they may where a signal ends this process at any moment.
        over = start is None
        raise
    finally:
        claim.release(over=over)


def part(meeting: Rendezvous, status: int, endpoint: Endpoint, servers: Sequence[Server]) -> None:
    """Take leave of a run that nobody supervises, at its end or before.

    Args:
        meeting: with the other processes.
        status: with which this one ends.
        endpoint: of the store.
        servers: of all processes, by rank.

    Raises:
        LeftEarly: this is the first one, and others go on.
    """
    meeting.leave(status)
    if meeting.start.rank == 0:
        meeting.dismiss(ranks_at_end(endpoint, servers))
        if goes_on(endpoint):
            raise LeftEarly
    else:
        end_for_first(meeting, endpoint, servers)


def end_for_first(meeting: Rendezvous, endpoint: Endpoint, servers: Sequence[Server]) -> None:
    """At the end of a run that its first process has left: delete its keys in etcd. One of those that are left does so.

    Args:
        meeting: with the other processes.
        endpoint: of the store.
        servers: of all processes, by rank.
    """
    if meeting.cluster is None or goes_on(endpoint):
        return
    last = ranks_at_end(endpoint, servers)
    # The others go before: who writes after the keys are deleted leaves some behind.
    if min(last, default=0) == meeting.start.rank and meeting.first_is_gone(last):
        forget(meeting.cluster)


def _origin(start: Start | None) -> str:
    if start is None:
        return f"{socket.gethostname()} {os.getpid()}"
    return " ".join((start.host, str(start.port), start.job, start.attempt))
