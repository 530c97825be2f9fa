"""Transitions: which server takes which place after a change, so that the fewest chunks are copied.

Servers are alike but for what they hold, and so are pipelines: any live server may take any place of the new fleet.
A server that takes a place copies the chunks of it that it does not hold, whatever the others do. So the fewest copies
are those of a cheapest assignment of places to servers, which is solved exactly.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from recycle.job import Server
from recycle.placing.fleet import Fleet
from recycle.wording import plural


class Taken(NamedTuple):
    """Which server has taken which place.

    Attributes:
        crews: per pipeline of the fleet, in its order, by the number that it goes on with: the server of each place.
        gained: how many chunks each of these servers copies.
    """

    crews: Mapping[int, tuple[Server, ...]]
    gained: Mapping[Server, int]


def take_places(fleet: Fleet, held: Mapping[Server, Collection[int]], pipelines: Mapping[Server, int]) -> Taken:
    """Which server takes which place: the fewest chunks are copied, and of that the fewest servers change pipelines.

    Args:
        fleet: what is to be; its layers are the chunks.
        held: the chunks that each live server holds; as many servers as the fleet has places, at least.
        pipelines: the one that each of them is in.
    """
    servers = sorted(held)
    runs = [range(*run) for each in fleet.pipelines for run in each.template.runs]
    assert len(runs) <= len(servers), (len(runs), len(servers))
    lacking = [[len(set(run).difference(held[each])) for each in servers] for run in runs]
    names = _names(_grouped(fleet, [servers[place] for place in _assign(lacking)]), pipelines)
    owners = [name for name, each in zip(names, fleet.pipelines, strict=True) for _ in each.template.runs]
    # What is copied outweighs all changes of pipeline.
    weight = len(runs) + 1
    ranked = [
        [weight * count + (pipelines[each] != name) for count, each in zip(row, servers, strict=True)]
        for row, name in zip(lacking, owners, strict=True)
    ]
    taken = _assign(ranked)
    places = _grouped(fleet, [servers[place] for place in taken])
    gained = {servers[place]: row[place] for row, place in zip(lacking, taken, strict=True)}
    return Taken(dict(zip(names, places, strict=True)), gained)


def _grouped(fleet: Fleet, servers: Sequence[Server]) -> tuple[tuple[Server, ...], ...]:
    """The servers of each pipeline."""
    each = iter(servers)
    return tuple(tuple(next(each) for _ in formed.template.runs) for formed in fleet.pipelines)


def stories(crews: Mapping[int, Sequence[Server]], pipelines: Mapping[Server, int]) -> Iterator[str]:
    """What becomes of the pipelines, in words; nothing of those that keep their servers.

    Args:
        crews: the servers of each pipeline that is to be.
        pipelines: the one that each live server is in.
    """
    for name, servers in crews.items():
        own = [server for server in servers if pipelines[server] == name]
        back = [server for server in servers if pipelines[server] != name == server.pipeline]
        borrowed = [server for server in servers if name not in (pipelines[server], server.pipeline)]
        gets = [f"gets {_list(back)} back"] * bool(back) + [f"borrows {_list(borrowed)}"] * bool(borrowed)
        if not own:
            yield f"pipeline {name} begins with {_list(servers)}"
        elif gets:
            yield f"pipeline {name} goes on with {plural(len(own), 'server')} and {' and '.join(gets)}"
        elif len(own) < sum(pipeline == name for pipeline in pipelines.values()):
            yield f"pipeline {name} goes on with {plural(len(own), 'server')}"
    for name in sorted(set(pipelines.values()) - set(crews)):
        gone = [server for server, pipeline in sorted(pipelines.items()) if pipeline == name]
        yield f"pipeline {name} is given up, and its {plural(len(gone), 'server')} used elsewhere: {_list(gone)}"


def load_solver() -> Any:
    """What finds the cheapest assignments; it takes a moment to import.

    Raises:
        ImportError: it is not installed.
    """
    from ortools.graph.python import min_cost_flow

    return min_cost_flow


def _assign(cost: Sequence[Sequence[int]]) -> list[int]:
    """For every row a column of its own, with the least sum of costs."""
    flow = load_solver().SimpleMinCostFlow()
    rows, columns = len(cost), len(cost[0])
    source, sink = rows + columns, rows + columns + 1
    for row in range(rows):
        flow.add_arc_with_capacity_and_unit_cost(source, row, 1, 0)
    arcs = {
        (row, column): flow.add_arc_with_capacity_and_unit_cost(row, rows + column, 1, cost[row][column])
        for row in range(rows)
        for column in range(columns)
    }
    for column in range(columns):
        flow.add_arc_with_capacity_and_unit_cost(rows + column, sink, 1, 0)
    flow.set_node_supply(source, rows)
    flow.set_node_supply(sink, -rows)
    status = flow.solve()
    assert status == flow.OPTIMAL, status
    return [next(column for column in range(columns) if flow.flow(arcs[row, column])) for row in range(rows)]


def _names(places: Sequence[Sequence[Server]], pipelines: Mapping[Server, int]) -> list[int]:
    """The pipeline whose name each new one takes: the one that most of its servers come from, each name once."""
    wishes = sorted(
        (-sum(pipelines[server] == name for server in servers), number, name)
        for number, servers in enumerate(places)
        for name in sorted(set(pipelines.values()))
    )
    names: dict[int, int] = {}
    for _, number, name in wishes:
        if number not in names and name not in names.values():
            names[number] = name
    free = (name for name in range(len(places) + len(names)) if name not in names.values())
    return [names[number] if number in names else next(free) for number in range(len(places))]


def _list(servers: Sequence[Server]) -> str:
    return " and ".join(map(str, servers)) if len(servers) < 3 else f"{len(servers)} servers, {servers[0]} first"
