"""Forming: pipelines out of all live servers of a run, of which some then compute in another one than their own. Pure.

Servers keep their names. What is chosen from are the templates of the job's chunks (``recycle.placing.templates``), for
as many servers as live, in at most as many pipelines as there are: a pipeline that is too short is given up, and
brings no micro-batches any more.
"""

from collections.abc import Callable, Collection, Sequence

from recycle.holding import own_layout, placed
from recycle.job import Job, Server
from recycle.placement import Layout
from recycle.placing.fleet import Fleet, PeriodOf, choose_fleet
from recycle.placing.layers import Layer, Model
from recycle.placing.spreading import assigned
from recycle.placing.templates import make_templates
from recycle.placing.transition import take_places

MeasureOf = Callable[[Model], PeriodOf]
"""What an iteration of pipelines of a model takes."""


def form(home: Job, present: Job, live: Collection[Server], period_of: MeasureOf) -> Layout | None:
    """The quickest pipelines of the live servers, so that the fewest chunks are copied.

    Every server has a place. Two pipelines are left at least, where there are two at home, so that whoever dies next
    leaves a copy of every chunk.

    Args:
        home: what is trained, with what each server holds while all live.
        present: the same with what each server holds now.
        live: servers.
        period_of: scores templates.

    Returns:
        None where no templates fit so many servers, or their memory.
    """
    servers = sorted(live)
    memory = min((_memory(home, server) for server in servers), default=0)
    layers = tuple(Layer(**{name: getattr(chunk, name) for name in Layer.__struct_fields__}) for chunk in home.stages)
    model = Model(layers, memory, max(home.latency, default=0))
    total = sum(home.loads)
    # What little memory does to a pipeline, its score says.
    templates = make_templates(model, len(layers), -(-total // home.pipelines), in_memory=1)
    failures = min(1, home.pipelines - 1)
    fleet = choose_fleet(templates, len(servers), total, period_of(model), failures, home.pipelines)
    return None if fleet is None else _lay_out(home, present, servers, fleet)


def _memory(home: Job, server: Server) -> int:
    """All that a server has, for activations and state."""
    here = placed(home, server)
    return here.limit + sum(home.stages[chunk].state for chunk in here.chunks)


def _lay_out(home: Job, present: Job, servers: Sequence[Server], fleet: Fleet) -> Layout:
    held = {server: placed(present, server).chunks for server in servers}
    crews = take_places(fleet, held, {each: present.pipeline_of(each) for each in servers}).crews
    formed = dict(zip(crews, fleet.pipelines, strict=True))
    roles = {
        server: (name, range(*run))
        for name, crew in crews.items()
        for server, run in zip(crew, formed[name].template.runs, strict=True)
    }
    loads = [formed[name].micro_batches if name in formed else 0 for name in range(home.pipelines)]
    return assigned(home, own_layout(home), roles, loads)
