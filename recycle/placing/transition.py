"""Transitions: who holds which layers after a change, so that the fewest bytes are copied.

Servers are alike but for what they hold, and so are pipelines: any live server may take any place of the new fleet.
A server that takes a place copies the layers of it that it does not hold, whatever the others do. So the fewest bytes
are those of a cheapest assignment of places to servers, which is solved exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from recycle.errors import NoPlanError
from recycle.job import Server
from recycle.placing.fleet import Fleet
from recycle.placing.layers import Model, Run
from recycle.placing.sources import Sources
from recycle.wording import plural

Holding = Mapping[Server, Run]
"""The layers that each live server holds."""


class LayerCopy(NamedTuple):
    """Layers that a server gets.

    Attributes:
        layers: which; a run of those that it lacks.
        source: a server that holds the first of them (see Sources).
        target: who gets them.
    """

    layers: Run
    source: Server
    target: Server


class Transition(msgspec.Struct, frozen=True):
    """From what servers hold to what a fleet needs.

    Attributes:
        places: per pipeline of the fleet, the server of each of its stages.
        copies: what is copied, in the order of the places.
        size: bytes in all: no assignment of the places takes less.
        busiest: bytes that one server gets at most.
        unused: live servers that have no place.
        stories: what becomes of the pipelines, in words.
    """

    places: tuple[tuple[Server, ...], ...]
    copies: tuple[LayerCopy, ...]
    size: int
    busiest: int
    unused: tuple[Server, ...]
    stories: tuple[str, ...]


def least_copies(model: Model, holding: Holding, pipelines: Mapping[Server, int], fleet: Fleet) -> Transition:
    """The transition to a fleet with the fewest bytes, and of those that with the fewest changes of pipeline.

    Args:
        model: whose layers are moved.
        holding: what the live servers hold; as many as the fleet has places, at least.
        pipelines: the one that each of them is in.
        fleet: what is to be.

    Raises:
        NoPlanError: a layer is held by no live server.
    """
    servers = sorted(holding)
    runs = [run for each in fleet.pipelines for run in each.template.runs]
    _require_layers(model, holding)
    cost = [[model.size(run) - model.size(_common(run, holding[each])) for each in servers] for run in runs]
    names, places = take_places(fleet, servers, pipelines, cost)
    taken = [server for each in places for server in each]
    sources = Sources(servers)
    copies: list[LayerCopy] = []
    received: dict[Server, int] = {}
    for server, run in zip(taken, runs, strict=True):
        for piece in _missing(run, holding[server]):
            copies += _copies(model, holding, sources, piece, server)
            received[server] = received.get(server, 0) + model.size(piece)
    return Transition(
        places=places,
        copies=tuple(copies),
        size=sum(received.values()),
        busiest=max(received.values(), default=0),
        unused=tuple(server for server in servers if server not in set(taken)),
        stories=tuple(stories(dict(zip(names, places, strict=True)), pipelines)),
    )


def take_places(
    fleet: Fleet, servers: Sequence[Server], pipelines: Mapping[Server, int], cost: Sequence[Sequence[int]]
) -> tuple[list[int], tuple[tuple[Server, ...], ...]]:
    """Who takes which place of a fleet, so that the least is copied, and of that with the fewest changes of pipeline.

    Args:
        fleet: what is to be.
        servers: the live ones, as many as the fleet has places, at least.
        pipelines: the one that each of them is in.
        cost: per place, what each of the servers would have to copy.

    Returns:
        Per pipeline of the fleet, its number, and the server of each of its stages.
    """
    assert len(cost) <= len(servers), (len(cost), len(servers))
    places = _grouped(fleet, [servers[place] for place in _assign(cost)])
    names = _names(places, pipelines)
    owners = [name for name, each in zip(names, places, strict=True) for _ in each]
    # What is copied outweighs all changes of pipeline.
    weight = len(cost) + 1
    ranked = [
        [weight * size + (pipelines[each] != name) for size, each in zip(row, servers, strict=True)]
        for row, name in zip(cost, owners, strict=True)
    ]
    return names, _grouped(fleet, [servers[place] for place in _assign(ranked)])


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


def _require_layers(model: Model, holding: Holding) -> None:
    for layer in range(len(model.layers)):
        if not any(first <= layer < end for first, end in holding.values()):
            raise NoPlanError(
                f"layer {layer} is held by no live server, so that none can copy it: restore it from a checkpoint"
            )


def _common(one: Run, other: Run) -> Run:
    first, end = max(one[0], other[0]), min(one[1], other[1])
    return (first, max(first, end)) if first < end else (0, 0)


def _missing(run: Run, held: Run) -> list[Run]:
    first, end = _common(run, held)
    if first == end:
        return [run]
    return [piece for piece in ((run[0], first), (end, run[1])) if piece[0] < piece[1]]


def _copies(model: Model, holding: Holding, sources: Sources, piece: Run, target: Server) -> list[LayerCopy]:
    """Copies of some layers, each part from a holder of its first layer."""
    copies: list[LayerCopy] = []
    first, end = piece
    while first < end:
        source = sources.choose((each for each, (begin, stop) in holding.items() if begin <= first < stop), target)
        part = (first, min(end, holding[source][1]))
        sources.add(source, model.size(part))
        copies.append(LayerCopy(part, source, target))
        first = part[1]
    return copies


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
