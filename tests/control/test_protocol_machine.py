"""The protocol under every order of events, with crashes, pauses and wrong accusations at every point."""

from itertools import groupby

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.examples import paper_job
from recycle.control.membership.events import Decided
from recycle.control.membership.machine import State
from recycle.control.membership.messages import Opening
from tests.control.simulation import Simulated, World

ANY = st.integers(0, 999)


class Protocol(RuleBasedStateMachine):
    """What may happen to a run. Rules that do not apply do nothing."""

    @initialize(shape=st.sampled_from([(2, 2, 1), (3, 2, 1), (2, 2, 2)]))
    def begin(self, shape: tuple[int, int, int]) -> None:
        pipelines, stages, ranks = shape
        self.world = World(paper_job(pipelines=pipelines, stages=stages, micro_batches=2), ranks)
        self.everybody_goes_on(1)

    def one(self, which: int, hung: bool = False) -> Simulated | None:
        able = [each for each in self.world.running if each.hung == hung and not each.cut]
        return able[which % len(able)] if able else None

    # What always goes on.

    @rule(which=ANY, what=ANY)
    def tell(self, which: int, what: int) -> None:
        if (one := self.one(which)) and (offers := one.offers()):
            one.tell(offers[what % len(offers)])

    @rule(which=ANY)
    def act(self, which: int) -> None:
        if one := self.one(which):
            one.act()

    @rule(which=ANY)
    def main_thread(self, which: int) -> None:
        if one := self.one(which):
            one.come_to_safe_point() or one.finish_rebuild() or one.finish_iteration()

    @rule(which=ANY, newest_first=st.booleans())
    def goes_on(self, which: int, newest_first: bool) -> None:
        if one := self.one(which):
            self.go_on(one, newest_first)

    @rule(rounds=st.integers(1, 4))
    def everybody_goes_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for one in self.world.running:
                if not (one.hung or one.cut):
                    self.go_on(one)

    @rule(which=ANY)
    def agent(self, which: int) -> None:
        agents = self.world.agents
        if agents and next(agents[which % len(agents)], self) is self:
            agents.pop(which % len(agents))

    # What goes wrong.

    @rule(which=ANY, with_agent=st.booleans(), hung=st.booleans())
    def crash(self, which: int, with_agent: bool, hung: bool) -> None:
        if len(self.world.everyone) < 16 * self.world.ranks and (one := self.one(which, hung)):
            one.die()
            if not with_agent:
                self.world.agents.append(self.world.declare_dead([one.member], "agent"))

    @rule(which=ANY)
    def hang(self, which: int) -> None:
        if one := self.one(which):
            one.hung = True

    @rule(which=ANY)
    def host_crashes(self, which: int) -> None:
        """All servers of a pipeline are on one host, and nobody tells of them."""
        if len(self.world.everyone) < 16 and (one := self.one(which)):
            for each in self.world.running:
                if each.member.server.pipeline == one.member.server.pipeline:
                    each.die()

    @rule(which=ANY)
    def cut(self, which: int) -> None:
        """A host loses its link, so that there are two sides."""
        if one := self.one(which):
            for each in self.world.running:
                each.cut |= each.member.server.pipeline == one.member.server.pipeline

    @rule(which=ANY)
    def other_side_goes_on(self, which: int) -> None:
        """What it has begun with everybody else, it may finish; more it cannot do."""
        able = [each for each in self.world.running if each.cut]
        if able:
            able[which % len(able)].finish_iteration()

    @rule()
    def heal(self) -> None:
        for one in self.world.everyone:
            one.cut = False

    @rule(which=ANY)
    def other_side_is_missed(self, which: int) -> None:
        able = [each for each in self.world.running if each.cut]
        if able:
            host = able[which % len(able)].member.server.pipeline
            lost = {each.member for each in able if each.member.server.pipeline == host}
            self.world.agents.append(self.world.declare_dead(sorted(lost), "heartbeat"))

    @rule(which=ANY)
    def wake(self, which: int) -> None:
        if one := self.one(which, hung=True):
            one.hung = False

    @rule(which=ANY)
    def accuse(self, which: int) -> None:
        one = self.world.everyone[which % len(self.world.everyone)]
        if one.hung or not one.alive or which % 7 == 0:
            self.world.agents.append(self.world.declare_dead([one.member], "heartbeat"))

    @rule(which=ANY)
    def operation_fails(self, which: int) -> None:
        if one := self.one(which):
            one.fail()

    @rule(which=ANY, late=ANY)
    def time_is_up(self, which: int, late: int) -> None:
        if (one := self.one(which)) and one.machine.view.members:
            one.overdue(one.machine.view.members[late % len(one.machine.view.members)])

    @rule()
    def writer_dies(self) -> None:
        self.world.leave_hole()

    # What is asked for.

    @rule(which=ANY)
    def join(self, which: int) -> None:
        vacant = self.world.vacant()
        if vacant and len(self.world.everyone) < 16 * self.world.ranks:
            self.world.join(vacant[which % len(vacant)])

    @rule(which=ANY)
    def pause(self, which: int) -> None:
        if one := self.one(which):
            one.ask_for_pause()

    @rule()
    def checkpoint(self) -> None:
        self.world.save_checkpoint()

    @rule(which=ANY)
    def tidy(self, which: int) -> None:
        one = self.one(which)
        if one and one.machine.state is State.TRAINING and one.machine.leads:
            self.world.board.forget(one.machine.view.epoch, one.machine.view.members)

    # What must hold.

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.look()
        for one in self.world.everyone:
            machine = one.machine
            if machine.state in (State.TRAINING, State.HALTING, State.GATHERING, State.REBUILDING):
                begun = self.world.opening if machine.starts else self.world.verdicts[machine.view.epoch]
                assert machine.view == begun.view
                assert one.member in machine.view.members

    def teardown(self) -> None:
        """Once nothing goes wrong any more, all who live train in one view, or all were told why they cannot."""
        if not hasattr(self, "world"):
            return
        for one in self.world.running:
            one.hung = one.cut = False
        for _ in range(40):
            self.come_to_rest()
            if self.has_recovered():
                break
        else:
            raise AssertionError([(str(one.member), one.machine.state, one.machine.view) for one in self.world.running])
        for one in self.world.everyone:
            one.machine.require_same_again(self.world.job)

    def has_recovered(self) -> bool:
        verdict, running = self.world.newest(), self.world.running
        members = [one for one in running if one.member in verdict.view.members]
        if isinstance(verdict, Opening):
            return not members
        if verdict.stop:
            return all(one.machine.state is State.JOINING for one in running)
        if not members:
            return True
        return len(members) == self.world.ranks * len(verdict.members) and all(
            one.machine.state is State.TRAINING and one.machine.view == verdict.view and one.iteration
            for one in members
        )

    def come_to_rest(self) -> None:
        while self.world.agents:
            self.agent(0)
        moved = True
        while moved and not self.has_recovered():
            before = [(len(one.machine.log), one.iteration) for one in self.world.everyone]
            self.everybody_goes_on(1)
            self.holds()
            moved = before != [(len(one.machine.log), one.iteration) for one in self.world.everyone]
        if self.has_recovered():
            return
        # What time-outs do: the silent are accused, operations fail, and who does not answer is overdue.
        view = self.world.newest().view
        lost = [each for each in view.members if not self.world.is_whole(each)]
        for _, on_host in groupby(lost, key=lambda member: member.server.pipeline):
            self.world.agents.append(self.world.declare_dead(list(on_host), "heartbeat"))
        for one in self.world.running:
            if one.rebuild or one.iteration:
                one.fail()
            elif one.machine.state is State.GATHERING:
                for member in view.members:
                    one.overdue(member)
        served = {one.member.server for one in self.world.running if self.world.is_whole(one.member)}
        if self.world.durable:
            for server in self.world.vacant():
                if server not in served:
                    self.world.join(server)

    def go_on(self, one: Simulated, newest_first: bool = False) -> None:
        for event in reversed(one.offers()) if newest_first else one.offers():
            one.tell(event)
            if isinstance(event, Decided):
                break
        while one.act():
            pass
        if one.alive:
            one.come_to_safe_point() or one.finish_rebuild() or one.finish_iteration()
        while one.act():
            pass


class TestProtocol(Protocol.TestCase):
    settings = settings(report_multiple_bugs=False)
