"""The decision: who is in the next epoch and where it takes up the work, as a pure function of what is known."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from recycle.control.membership.messages import NOTHING, Death, KeptVersions, Report, Verdict
from recycle.control.membership.view import Member, View
from recycle.errors import JobError
from recycle.holding import own_layout, units, units_of, units_text, with_layout
from recycle.job import Job, Server
from recycle.placement import Layout
from recycle.placing.returning import return_home
from recycle.placing.spreading import Role, assigned


class Survey(NamedTuple):
    """What is known about an epoch that cannot go on.

    Attributes:
        view: the view of that epoch.
        reports: what its members hold, by member.
        deaths: who was declared dead.
        joiners: new members that are ready to be admitted, and what they hold.
        layout: who was to hold what in that epoch; None where that is as the job says.
        wish: who is to hold what from now on, if nothing else has happened; None for no change.
    """

    view: View
    reports: Mapping[Member, Report]
    deaths: Mapping[Member, Death]
    joiners: Mapping[Member, Report]
    layout: Layout | None = None
    wish: Layout | None = None

    @property
    def calm(self) -> bool:
        """Whether nobody has died, and all members are before the same iteration: then chunks may move."""
        versions = {self.reports[each].newest for each in self.view.members if each in self.reports}
        return len(versions) == 1 and not any(each in self.deaths for each in self.view.members)


class Missing(NamedTuple):
    """Nothing can be decided yet.

    Attributes:
        members: who has neither reported nor died.
    """

    members: tuple[Member, ...]


class Lost(NamedTuple):
    """The state cannot be brought together from the members' memory and there is nothing to restore it from.

    Attributes:
        stages: those, or chunks where pipelines are not alike, without any live server; none if all have one, but hold
            no version in common.
        checkpoint: whether all survivors can read one, so that new servers for these stages would help.
        kept: whether keepers have what is missing, so that they would help as well.
    """

    stages: tuple[int, ...]
    checkpoint: bool
    kept: bool = False


def decide(job: Job, survey: Survey) -> Verdict | Missing | Lost:
    """Decide how an epoch is followed.

    The work goes back to the iteration in flight, or forward to the next one where every stage has a live server that
    has finished it already; it is the newest version that is held in every stage, by a server or by keepers. Who lacks
    it copies it from a peer, or where no peer has it, from keepers. Only a checkpoint that is newer comes before it.
    Where servers hold some shards of their stage's optimizer only, together they must have all shards of the version.

    Who holds which chunks changes only where nobody has died: to what the leader wishes, or so that a server which
    comes back gets some. So no failure has to be survived in the middle of a move and of a recovery at once.

    Args:
        job: what is trained.
        survey: what is known.
    """
    view = survey.view
    missing = tuple(each for each in view.members if each not in survey.reports and each not in survey.deaths)
    if missing:
        return Missing(missing)
    holders = {each: survey.reports[each] for each in view.members if each not in survey.deaths}
    admitted = _admitted(job, survey, holders)
    holders |= admitted
    layout = _next_layout(job, survey, admitted, [each.server for each in holders])
    if _empty(with_layout(job, layout), holders):
        layout = _as_held(job, layout, holders)
    job = with_layout(job, layout)
    empty = _empty(job, holders)
    common = _common_versions(job, holders)
    readable = [report.checkpoint for report in holders.values() if report.checkpoint is not None]
    checkpoint = len(readable) == len(holders) > 0
    durable = checkpoint and min(readable) > max(common, default=NOTHING)
    if not empty and (common or durable):
        step = min(readable) if durable else max(common)
        return Verdict(
            epoch=view.epoch + 1,
            members=_names(holders),
            step=step,
            restore="checkpoint" if durable else "memory",
            deaths=tuple(survey.deaths[each] for each in view.members if each in survey.deaths),
            joined=_names(admitted),
            lacking=_names(each for each, report in holders.items() if not durable and step not in report.versions),
            stop=next((report.stop for report in holders.values() if report.stop), ""),
            layout=layout,
            held={
                str(each): chunks
                for each, report in holders.items()
                if (chunks := report.chunks) is not None
                if not durable and step in report.versions and chunks != units_of(job, each.server)
            },
        )
    return Lost(empty, checkpoint, bool(common))


def common_report(reports: Collection[Report]) -> Report:
    """What is true of all ranks of a server, which can be one step apart.

    Args:
        reports: of each of them in one epoch, and at least one.
    """
    first = min(reports, key=lambda each: each.rank)
    versions = frozenset.intersection(*(each.versions for each in reports))
    readable = [each.checkpoint for each in reports if each.checkpoint is not None]
    return Report(
        first.member,
        first.epoch,
        max(versions, default=NOTHING),
        min(versions, default=NOTHING),
        min(readable) if len(readable) == len(reports) else None,
        next((each.stop for each in reports if each.stop), ""),
        _common_kept([each.kept for each in reports]),
        closed=any(each.closed for each in reports),
        shards=_common_shards(reports, max(versions, default=NOTHING)),
        older_shards=_common_shards(reports, min(versions, default=NOTHING)),
        chunks=first.chunks,
    )


def give_up(job: Job, survey: Survey, lost: Lost, *, loads: bool = True) -> Verdict:
    """The verdict that ends a run that cannot go on.

    Args:
        job: what is trained.
        survey: what is known.
        lost: what there is not.
        loads: whether servers load checkpoints by themselves; otherwise nothing is known of these.
    """
    if lost.stages:
        what = f"no live server of {units_text(job, lost.stages)} is left"
    else:
        what = "no version of the state is held in every stage"
    if lost.checkpoint:
        remedy = "; there is a checkpoint: go on from it with --resume"
    elif not loads:
        remedy = "; go on from the last checkpoint, if there is one"
    else:
        remedy = ", and there is no checkpoint that every server can read; train again with checkpoints switched on"
    return Verdict(
        epoch=survey.view.epoch + 1,
        members=_names(each for each in survey.view.members if each not in survey.deaths),
        step=0,
        deaths=tuple(survey.deaths[each] for each in survey.view.members if each in survey.deaths),
        stop=f"{what}{remedy}",
    )


def _admitted(job: Job, survey: Survey, survivors: Mapping[Member, Report]) -> dict[Member, Report]:
    """Of those who are ready to take a vacant place: for each server the life that was asked for first."""
    present = with_layout(job, survey.layout)
    if any(report.closed for report in survivors.values()) and not _is_only_kept(present, survivors):
        return {}
    taken = {each.server for each in survivors}
    admitted: dict[Server, Member] = {}
    for joiner in sorted(survey.joiners):
        waits = not (units_of(present, joiner.server) or survey.calm)
        if joiner.server not in taken and joiner not in survey.deaths and not waits:
            admitted.setdefault(joiner.server, joiner)
    return {joiner: survey.joiners[joiner] for joiner in admitted.values()}


def _is_only_kept(job: Job, survivors: Mapping[Member, Report]) -> bool:
    """Whether a stage has no live server, and keepers have it: then who joins gets its state from there."""
    held = {unit for each in survivors for unit in units_of(job, each.server)}
    of_keepers = [zip(units(job), report.kept, strict=False) for report in survivors.values()]
    kept = {unit for found in of_keepers for unit, versions in found if versions}
    lost = set(units(job)) - held
    return bool(lost) and lost <= kept


def _next_layout(job: Job, survey: Survey, joiners: Iterable[Member], live: Collection[Server]) -> Layout | None:
    """Who holds what in the view that comes."""
    layout = survey.layout
    if survey.wish is not None and survey.calm:
        layout = survey.wish
    present = with_layout(job, layout)
    homeless = [each.server for each in joiners if not units_of(present, each.server)]
    home = own_layout(job)
    if layout is not None and homeless:
        layout = return_home(job, home, layout, homeless, live)
    return None if layout == home else layout


def _empty(job: Job, holders: Iterable[Member]) -> tuple[int, ...]:
    """What has no place at a live server."""
    held = {unit for each in holders for unit in units_of(job, each.server)}
    return tuple(unit for unit in units(job) if unit not in held)


def _as_held(job: Job, layout: Layout | None, holders: Mapping[Member, Report]) -> Layout | None:
    """The layout in which servers have the chunks that they hold, as they do of one that has died on its return.

    A server that holds nothing yet keeps its place. It is the same layout if a pipeline would lack a chunk, or have one
    twice.
    """
    held = {member.server: report.chunks for member, report in holders.items() if report.chunks}
    if not held:
        return layout
    home, now = own_layout(job), with_layout(job, layout)
    taken = {(now.pipeline_of(server), chunk) for server, chunks in held.items() for chunk in chunks}
    roles: dict[Server, Role] = {}
    for server in now.servers():
        pipeline = now.pipeline_of(server)
        left = tuple(chunk for chunk in units_of(now, server) if (pipeline, chunk) not in taken)
        if chunks := held.get(server, left):
            roles[server] = pipeline, chunks
    found = assigned(job, home, roles, now.loads)
    try:
        with_layout(job, found)
    except JobError:
        return layout
    return None if found == home else found


def _common_versions(job: Job, holders: Mapping[Member, Report]) -> frozenset[int]:
    """The versions that are held in every stage, by a server of it or by keepers."""
    held: list[set[int]] = [set() for _ in units(job)]
    parts: list[dict[int, set[int]]] = [{} for _ in units(job)]
    for member, report in holders.items():
        chunks = units_of(job, member.server) if report.chunks is None else report.chunks
        for version, unit in product(report.versions, chunks):
            shards = report.shards_of(version)
            found = parts[unit].setdefault(version, set())
            found.update(shards or ())
            if shards is None or len(found) == job.pipelines:
                held[unit].add(version)
        for versions, kept in zip(held, report.kept, strict=False):
            versions.update(kept)
    return frozenset(set.intersection(*held))


def _common_shards(reports: Collection[Report], version: int) -> tuple[int, ...] | None:
    """The shards of a version that all ranks of a server hold, each of its own part; None where that is all of them."""
    shards = [frozenset(found) for each in reports if (found := each.shards_of(version)) is not None]
    return tuple(sorted(frozenset.intersection(*shards))) if shards else None


def _common_kept(reports: Sequence[KeptVersions]) -> KeptVersions:
    """The versions of each stage that keepers have as a whole, as all ranks of a server see them."""
    return tuple(tuple(sorted(set.intersection(*map(set, versions)))) for versions in zip(*reports, strict=False))


def _names(members: Iterable[Member]) -> tuple[str, ...]:
    return tuple(str(member) for member in sorted(members))
