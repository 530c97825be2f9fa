"""Servers of a job that have collectives, over real gloo; nothing here needs Megatron's training code."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from hypothesis import strategies as st
from torch.distributed import HashStore

from harness.examples import paper_job
from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.megatron.flag.world.collectives import Collectives
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.runtime.errors import Interrupted
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions

PATIENCE = timedelta(seconds=120)


def in_order(job):
    """All servers of a job by their rank, as Megatron numbers them."""
    return tuple(Server(pipeline, stage) for stage in range(job.depth) for pipeline in range(job.pipelines))


def groups_of(server, job):
    """The groups of at least two ranks in which Megatron puts a server."""
    everybody = in_order(job)
    pipeline = tuple(each for each in everybody if each.pipeline == server.pipeline)
    groups = {everybody, tuple(each for each in everybody if each.stage == server.stage), pipeline}
    if server in (pipeline[0], pipeline[-1]):
        groups.add((pipeline[0], pipeline[-1]))
    return {group for group in groups if len(set(group)) > 1}


@st.composite
def dead_sets(draw, job):
    """Servers that are dead, often many; every stage has a live one."""
    alive = [
        Server(pipeline, stage)
        for stage in range(job.depth)
        for pipeline in draw(st.sets(st.integers(0, job.pipelines - 1), min_size=1))
    ]
    return [server for server in job.servers() if server not in alive]


@st.composite
def small_jobs(draw):
    """The shape of a job, and servers that are dead."""
    job = paper_job(pipelines=draw(st.integers(2, 3)), stages=draw(st.integers(1, 3)), micro_batches=2)
    return job, draw(dead_sets(job))


class LiveServer:
    """One rank of a server, which goes through views that are known beforehand.

    Args:
        server: which.
        job: for its shape.
        store: where the servers meet.
        views: the live servers of each, in the order of their epochs.
        halted: says whether anybody has left the view of an epoch.
        halt: says so.
        groups: that it is in; Megatron's if not given.
        rank: of the server.
    """

    def __init__(self, server, job, store, views, halted, halt, groups=None, rank=SOLE):
        self.server = server
        self.rank = rank
        self._ranks = RankCollectives(rank)
        self.completed = self.settled = 0
        self.epoch = -1
        self.collectives = Collectives(server, job, self._ranks, self._settle, self.recover, self._complete)
        self._store = store
        self._views = views
        self._halted = halted
        self._halt = halt
        self._groups = groups_of(server, job) if groups is None else groups
        self.enter()

    def _settle(self):
        self.settled += 1

    def enter(self):
        """Get to the next view."""
        self.epoch += 1
        view = View.among(self._views[self.epoch], self.epoch)
        self.network = connect(
            self._store, view, self.server, NetworkOptions(PATIENCE, PATIENCE), self.rank, self._require_whole
        )
        self._ranks.connect(self.network)
        self.collectives.connect(self.network, self._groups)

    def recover(self, _):
        self._halt(self.epoch)
        self.enter()

    def _require_whole(self):
        if self._halted(self.epoch):
            raise Interrupted("somebody has left this view")

    def _complete(self):
        self.completed += 1


def in_threads(servers, work: Callable):
    """Do something as each of some servers at the same time; gives the results by server."""
    with ThreadPoolExecutor(len(servers)) as pool:
        begun = {server: pool.submit(work, server) for server in servers}
        return {server: each.result() for server, each in begun.items()}


def live_ranks(job, views, work: Callable, size, groups=None):
    """Do something as each rank of each server of the first view, in threads of this process; gives results by both.

    Args:
        job: for its shape.
        views: the live servers of each.
        work: called with a LiveServer.
        size: how many ranks a server has.
        groups: by server; Megatron's if not given.
    """
    store = HashStore()
    alarms = [threading.Event() for _ in views]
    entered, over = (threading.Barrier(size * len(views[0])) for _ in range(2))

    def begin(place):
        server, number = place
        live = LiveServer(
            server,
            job,
            store,
            views,
            lambda epoch: alarms[epoch].is_set(),
            lambda epoch: alarms[epoch].set(),
            None if groups is None else groups[server],
            ServerRank(number, size),
        )
        # What the work breaks is a view that stands: a rank that is still on its way into it would not get there.
        entered.wait(PATIENCE.total_seconds())
        try:
            return work(live)
        finally:
            # A network that ends cuts connections to its partners, and here those of others to them are not told apart.
            over.wait(PATIENCE.total_seconds())

    return in_threads([(server, number) for server in views[0] for number in range(size)], begin)


def live_servers(job, views, work: Callable, groups=None):
    """Do something as each server of the first view, in threads of this process.

    Args:
        job: for its shape.
        views: the live servers of each.
        work: called with a LiveServer.
        groups: by server; Megatron's if not given.
    """
    found = live_ranks(job, views, work, 1, groups)
    return {server: result for (server, _), result in found.items()}
