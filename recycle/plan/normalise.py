"""Normalisation: one plan per vector of failure counts serves every set of failed servers with these counts.

Peers of a stage hold the same parameters, so which of them died does not matter. A plan is made for the canonical set
of its counts; for any other set, pipelines are renamed as a whole as far as that goes, and where it does not, a live
server acts as a dead peer.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from recycle.job import Job, Server
from recycle.plan.instruction import Instruction
from recycle.plan.plan import Plan

Counts: TypeAlias = tuple[int, ...]
"""How many servers of each stage are dead."""


def failure_counts(job: Job, failed: Collection[Server]) -> Counts:
    """How many servers of each stage are among the failed."""
    stages = [server.stage for server in failed]
    return tuple(stages.count(stage) for stage in range(job.depth))


def canonical_failed(job: Job, counts: Counts) -> tuple[Server, ...]:
    """The failed set that stands for all with these counts: the servers of the last pipelines."""
    last = job.pipelines - 1
    return tuple(sorted(Server(last - place, stage) for stage, count in enumerate(counts) for place in range(count)))


class Relabelling(msgspec.Struct, frozen=True):
    """How a canonical plan is read for some failed servers.

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
        """A program of the canonical plan in the names of the failed set that was asked for."""
        actor = {role: server for server, role in self.roles.items()}
        names = self.pipelines
        relabelled = []
        for each in canonical:
            peer = each.peer
            if peer is not None:
                role = Server(names[peer.pipeline], peer.stage)
                peer = actor.get(role, role)
            home = names[each.home] if each.home >= 0 else each.home
            relabelled.append(Instruction(each.op, each.stage, home, each.micro_batch, peer, each.chunk))
        return tuple(relabelled)


def relabelling(job: Job, failed: Collection[Server]) -> Relabelling:
    """How the canonical plan of the failed servers' counts is read for them, with few servers in another's role.

    The canonical pipelines with the most dead servers are matched first, each with the pipeline whose dead servers
    overlap the most with its own.
    """
    dead: dict[int, set[int]] = {}
    for server in failed:
        dead.setdefault(server.pipeline, set()).add(server.stage)
    wanted: dict[int, set[int]] = {}
    for server in canonical_failed(job, failure_counts(job, failed)):
        wanted.setdefault(server.pipeline, set()).add(server.stage)
    match: dict[int, int] = {}
    unmatched = sorted(dead)
    for canonical in sorted(wanted, reverse=True):
        if not unmatched:
            break
        best = max(unmatched, key=lambda pipeline: (len(dead[pipeline] & wanted[canonical]), pipeline == canonical))
        if dead[best] & wanted[canonical]:
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
        spare = sorted(server for server in vacant - set(failed) if server.stage == stage)
        needed = sorted(server for server in set(failed) - vacant if server.stage == stage)
        roles.update(zip(spare, needed, strict=True))
    return Relabelling(pipelines, roles)


def relabel_plan(plan: Plan, failed: Collection[Server]) -> Plan:
    """The whole canonical plan, read for some failed servers with the same counts."""
    job = plan.job
    reading = relabelling(job, failed)
    live = [server for server in job.servers() if server not in set(failed)]
    return msgspec.structs.replace(
        plan,
        failed=job.failed_set(failed),
        roles=reading.roles,
        programs={server: reading.program(plan.programs[reading.canonical(server)]) for server in live},
    )
