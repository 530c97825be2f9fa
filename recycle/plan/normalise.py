"""Normalisation: one plan per vector of failure counts serves every set of dead servers with these counts.

Peers of a stage hold the same parameters, so which of them died does not matter. A plan is made for the canonical set
of its counts; for any other set, pipelines are renamed as a whole as far as that goes, and where it does not, a live
server acts as a dead peer.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from recycle.job import DeadServers, Job, Server
from recycle.plan.instruction import Instruction
from recycle.plan.plan import Plan

Counts: TypeAlias = tuple[int, ...]
"""How many servers of each stage are dead."""


def canonical_dead(job: Job, counts: Counts) -> DeadServers:
    """The dead servers that stand for all with these counts: those of the last pipelines."""
    last = job.pipelines - 1
    return job.dead_servers(Server(last - place, stage) for stage, count in enumerate(counts) for place in range(count))


class Relabelling(msgspec.Struct, frozen=True):
    """How a canonical plan is read for some dead servers.

    Attributes:
        pipelines: the pipeline that takes the place of each canonical one.
        roles: live servers that act as a dead peer; every other live server acts as itself.
    """

    pipelines: tuple[int, ...]
    roles: Mapping[Server, Server]

    def canonical(self, server: Server) -> Server:
        """The server of the canonical plan whose program a live server executes."""
        role = self.roles.get(server, server)
        return Server(self.pipelines.index(role.pipeline), role.stage)

    def program(self, canonical: Sequence[Instruction]) -> tuple[Instruction, ...]:
        """A program of the canonical plan in the names of the dead servers that were asked for."""
        actor = {role: server for server, role in self.roles.items()}
        names = self.pipelines
        relabelled = []
        for each in canonical:
            peer = each.peer
            if peer is not None:
                role = Server(names[peer.pipeline], peer.stage)
                peer = actor.get(role, role)
            home = names[each.home] if each.home >= 0 else each.home
            relabelled.append(Instruction(each.op, each.stage, home, each.micro_batch, peer))
        return tuple(relabelled)


def relabelling(job: Job, dead: DeadServers) -> Relabelling:
    """How the canonical plan of the dead servers' counts is read for them, with few servers in another's role.

    The canonical pipelines with the most dead servers are matched first, each with the pipeline whose dead servers
    overlap the most with its own.
    """
    lacking: dict[int, set[int]] = {}
    for server in dead:
        lacking.setdefault(server.pipeline, set()).add(server.stage)
    wanted: dict[int, set[int]] = {}
    for server in canonical_dead(job, dead.counts):
        wanted.setdefault(server.pipeline, set()).add(server.stage)
    match: dict[int, int] = {}
    unmatched = sorted(lacking)
    for canonical in sorted(wanted, reverse=True):
        if not unmatched:
            break
        best = max(unmatched, key=lambda pipeline: (len(lacking[pipeline] & wanted[canonical]), pipeline == canonical))
        if lacking[best] & wanted[canonical]:
            match[canonical] = best
            unmatched.remove(best)
    rest = sorted(set(range(job.pipelines)) - set(match.values()))
    # A pipeline that need not be renamed keeps its name.
    for canonical in sorted(set(rest) - set(match)):
        match[canonical] = canonical
        rest.remove(canonical)
    for canonical in range(job.pipelines):
        if canonical not in match:
            match[canonical] = rest.pop(0)
    pipelines = tuple(match[canonical] for canonical in range(job.pipelines))
    vacant = {Server(pipelines[pipeline], stage) for pipeline, stages in wanted.items() for stage in stages}
    roles: dict[Server, Server] = {}
    for stage in range(job.depth):
        spare = sorted(server for server in vacant - dead if server.stage == stage)
        needed = sorted(server for server in dead - vacant if server.stage == stage)
        roles.update(zip(spare, needed, strict=True))
    return Relabelling(pipelines, roles)


def relabel_plan(plan: Plan, dead: DeadServers, reading: Relabelling | None = None) -> Plan:
    """The whole canonical plan, read for some dead servers with the same counts.

    Args:
        plan: the canonical one.
        dead: the dead servers.
        reading: how it is read for them; None for ``relabelling``.
    """
    job = plan.job
    reading = reading or relabelling(job, dead)
    live = [server for server in job.servers() if server not in dead]
    return msgspec.structs.replace(
        plan,
        dead=dead,
        roles=reading.roles,
        programs={server: reading.program(plan.programs[reading.canonical(server)]) for server in live},
    )
