"""All orders in which a death can be heard of, up to a depth, with a few members: every one, and none by chance.

A run of three pipelines of one stage is brought to its first iterations. Then a member dies, and from there all that
can happen next is tried, as deep as stated: each request of an agent, each event that a member could be told, each
action that it could carry out, and each thing that its main thread could do. Orders that come to the same state are
gone on from once. From every state at the end of that depth, the run has to find back.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from harness.examples import paper_job
from tests.control.simulation import World
from tests.control.test_protocol_machine import Protocol


class Step(NamedTuple):
    """One of the things that can happen next.

    Attributes:
        kind: act, tell, thread, fail or agent.
        which: the member or the agent, by its number.
        what: the event's id; empty where there is none.
    """

    kind: str
    which: int
    what: str = ""


class Order:
    """A run in which things happen in one order."""

    def __init__(self, victim: int, steps: tuple[Step, ...]) -> None:
        self.protocol = Protocol()
        self.world = self.protocol.world = World(paper_job(pipelines=3, stages=1, micro_batches=2))
        self.protocol.everybody_goes_on(5)
        assert self.protocol.has_recovered(), "it has not begun"
        dead = self.world.everyone[victim]
        dead.die()
        self.world.agents.append(self.world.declare_dead([dead.member], "agent"))
        for step in steps:
            self.take(step)

    def take(self, step: Step) -> None:
        if step.kind == "agent":
            self.protocol.agent(step.which)
        else:
            one = self.world.everyone[step.which]
            match step.kind:
                case "act":
                    one.act()
                case "tell":
                    one.tell(next(each for each in one.offers() if each.id == step.what))
                case "fail":
                    one.fail()
                case _:
                    _ = one.come_to_safe_point() or one.finish_rebuild() or one.finish_iteration()
        self.protocol.holds()

    def next_steps(self) -> Iterator[Step]:
        for number, one in enumerate(self.world.everyone):
            if not one.alive:
                continue
            if one.to_do:
                yield Step("act", number)
            yield Step("thread", number)
            if one.iteration is not None and not one.interrupted:
                yield Step("fail", number)
            for event in one.offers():
                if one.machine._counts(event):
                    yield Step("tell", number, event.id)
        for number in range(len(self.world.agents)):
            yield Step("agent", number)

    def state(self) -> object:
        """All that what comes next depends on."""
        members = [
            (each.alive, each.held, each.to_do, each.iteration, each.interrupted, each.rebuild, sorted(each.told))
            for each in self.world.everyone
        ]
        machines = [vars(each.machine) | {"log": None} for each in self.world.everyone]
        agents = [each.gi_frame and each.gi_frame.f_lasti for each in self.world.agents]  # type: ignore[attr-defined]
        store = self.world.store
        stored = [(key, store.get(key)) for key in store.keys]
        return repr((members, machines, agents, stored, self.world.begun, self.world.rung))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("depth", [4, *(pytest.param(each, marks=pytest.mark.long) for each in (5, 6))])
@pytest.mark.parametrize("victim", [0, 1], ids=["the leader dies", "another one dies"])
def test_in_every_order_in_which_a_death_is_heard_of_the_run_finds_back(victim: int, depth: int) -> None:
    orders: list[tuple[Step, ...]] = [()]
    seen: set[object] = set()
    for _ in range(depth):
        longer = []
        for steps in orders:
            for step in Order(victim, steps).next_steps():
                order = Order(victim, (*steps, step))
                state = order.state()
                if state not in seen:
                    seen.add(state)
                    longer.append((*steps, step))
        orders = longer
    for steps in orders:
        Order(victim, steps).protocol.teardown()
