"""Returning: which server holds what when servers come back whose chunks have moved to others. Pure.

It has to be found at once, by who decides on the next view, and needs no more than to be good: what is best is looked
for while training goes on.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from recycle.job import Job, Server
from recycle.placement import Layout, PlacedPipeline, PlacedServer, crews
from recycle.placing.spreading import Role, assigned, spread


def return_home(
    job: Job, home: Layout, layout: Layout, returned: Collection[Server], live: Collection[Server]
) -> Layout:
    """Who holds what when servers come back whose chunks have moved to others.

    Where every server computes in its own pipeline, and none is given up, those of the returned are spread anew, or
    are as at home where all of their servers live. All pipelines bring as many micro-batches again as at home: what
    fits the new servers better is chosen once they are there.

    Otherwise only one pipeline is spread anew for each that comes back: its own, or the shortest
    if that is given up. If these have more servers than chunks, all live servers are shared out to pipelines anew.

    Args:
        job: what is trained.
        home: which server holds what while all live.
        layout: which server holds what now.
        returned: the servers that come back, and hold nothing.
        live: all live servers, those among them.
    """
    lent = any(server.pipeline is not None for pipeline in layout for server in pipeline.servers)
    if lent or not all(crews(layout)):
        return _return_to_crews(job, home, layout, returned, live)
    pipelines = []
    for number, (mine, now) in enumerate(zip(home, layout, strict=True)):
        servers, back = now.servers, {server.stage for server in returned if server.pipeline == number}
        if back:
            places = [server.stage for server in live if server.pipeline == number]
            whole = len(places) == len(mine.servers)
            cut = None if whole else spread(job, mine.servers, places, [each.chunks for each in servers])
            servers = cut or mine.servers
        pipelines.append(PlacedPipeline(mine.micro_batches, servers))
    return tuple(pipelines)


def _return_to_crews(
    job: Job, home: Layout, layout: Layout, returned: Collection[Server], live: Collection[Server]
) -> Layout:
    placed = {
        Server(number, place): each
        for number, pipeline in enumerate(layout)
        for place, each in enumerate(pipeline.servers)
    }

    def spread_over(number: int, crew: Sequence[Server]) -> dict[Server, Role] | None:
        """The model on a crew, in the order in which its servers hold it now, or at home."""
        at_home = {each: home[each.pipeline].servers[each.stage] for each in crew}
        order = sorted(crew, key=lambda each: (placed[each].chunks or at_home[each].chunks, each))
        held = [placed[each].chunks for each in order]
        servers = spread(job, tuple(map(at_home.__getitem__, order)), range(len(order)), held)
        if servers is None:
            return None
        return {each: (number, server.chunks) for each, server in zip(order, servers, strict=True)}

    def joined() -> Layout | None:
        """Those who return each in one pipeline, and all others as they are."""
        now = [[Server(*each) for each in crew] for crew in crews(layout)]
        lived = [[each for each in crew if each in live] for crew in now]
        changed = set()
        for server in sorted(returned):
            fitting = [number for number, crew in enumerate(lived) if 0 < len(crew) < len(job.stages)]
            if not fitting:
                return None
            choice = min(fitting, key=lambda number: (number != server.pipeline, len(lived[number]), number))
            lived[choice].append(server)
            changed.add(choice)
        roles: dict[Server, Role] = {}
        for number, crew in enumerate(now):
            found = spread_over(number, lived[number]) if number in changed else _roles(number, crew, placed)
            if found is None:
                return None
            roles |= found
        return assigned(job, home, roles, [each.micro_batches for each in (home if all(now) else layout)])

    def shared_out(count: int) -> Layout | None:
        """All live servers in so many pipelines of about the same length, those of the same name together."""
        servers, total = sorted(live), sum(each.micro_batches for each in home)
        roles: dict[Server, Role] = {}
        for number in range(count):
            found = spread_over(number, servers[_share(len(servers), number, count)])
            if found is None:
                return None
            roles |= found
        shares = [len(range(total)[_share(total, number, count)]) for number in range(count)]
        return assigned(job, home, roles, [*shares, *[0] * (len(home) - count)])

    most = min(len(home), len(live))
    return joined() or next(filter(None, map(shared_out, range(most, 0, -1))), home)


def _roles(number: int, crew: Iterable[Server], placed: Mapping[Server, PlacedServer]) -> dict[Server, Role]:
    """Those of a pipeline that stays as it is."""
    return {each: (number, placed[each].chunks) for each in crew}


def _share(whole: int, number: int, count: int) -> slice:
    """One of some parts of a whole that are as equal as they can be."""
    return slice(whole * number // count, whole * (number + 1) // count)
