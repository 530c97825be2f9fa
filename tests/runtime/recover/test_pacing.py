from types import SimpleNamespace

from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import HostMoment, Recorder
from recycle.record.speeds import LEAST
from recycle.runtime.recover.pacing import LONGEST, Pacing

MEMBERS = tuple(Member(Server(pipeline, 0), 0) for pipeline in range(3))


def verdict(epoch, *members, deaths=(), layout=None):
    return Verdict(epoch, tuple(map(str, members)), step=0, deaths=deaths, layout=layout)


def holding(*chunks):
    """A layout with one server in each pipeline."""
    return tuple(PlacedPipeline(1, (PlacedServer(each, 2),)) for each in chunks)


class Team:
    """Members that make iterations together; one of them takes longer for F."""

    def __init__(self, slow=2.0):
        store = MemoryStore()
        self.times = {member: slow if member == MEMBERS[1] else 1.0 for member in MEMBERS}
        self.recorders = {member: Recorder(member.server) for member in MEMBERS}
        self.step = 0
        self.pacings = {
            member: Pacing(member, SimpleNamespace(board=Board(store.clone(), "token")), self.recorders[member])
            for member in MEMBERS
        }

    def begin(self, verdict):
        for member in verdict.view.members:
            self.pacings[member].begin(verdict)
        self.members = verdict.view.members

    def iterate(self, count, order=1):
        """Make iterations, after which members look in their order, or against it; gives what came of that."""
        found = []
        for _ in range(count):
            self.step += 1
            for member in self.members:
                recorder = self.recorders[member]
                recorder.clear()
                start = self.step * 10**9
                computed, began, sent = (
                    HostMoment(start + each) for each in (int(self.times[member] * 1e6), 3 * 10**6, 9 * 10**6)
                )
                recorder.add(Instruction(Op.F, 0, 0, 0), HostMoment(start), computed)
                recorder.add(Instruction(Op.SEND_F, 0, 0, 0, Server(0, 1)), began, sent)
            found += [each for member in self.members[::order] if (each := self.pacings[member].look(self.step))]
        return found


def test_who_leads_hears_how_fast_all_are_once_all_have_told_it():
    team = Team()
    team.begin(verdict(1, *MEMBERS))
    assert team.iterate(LEAST - 1) == []
    # Who leads looks first, when the others have told nothing yet.
    assert team.iterate(1) == []
    assert team.iterate(1) == [{MEMBERS[0].server: 1.0, MEMBERS[1].server: 0.5, MEMBERS[2].server: 1.0}]
    # It takes twice as many iterations to say so again, also where the placement changes meanwhile.
    assert team.iterate(2 * LEAST - 2) == []
    assert len(team.iterate(2)) == 1
    team.begin(verdict(2, *MEMBERS))
    assert team.iterate(4 * LEAST - 1) == []
    assert len(team.iterate(1, order=-1)) == 1


def test_after_a_death_it_is_told_soon_again_and_without_the_dead():
    team = Team()
    team.begin(verdict(1, *MEMBERS))
    # Nobody takes longer than LONGEST to say so.
    assert len(team.iterate(3 * LONGEST)) >= 5
    team.begin(verdict(2, *MEMBERS[:2], deaths=(Death(str(MEMBERS[2]), "was killed", "agent", 1.0),)))
    assert team.iterate(LEAST, order=-1) == [{MEMBERS[0].server: 1.0, MEMBERS[1].server: 0.5}]


def test_it_is_told_soon_where_somebody_computes_who_was_left_out():
    team = Team()
    team.begin(verdict(1, *MEMBERS))
    assert len(team.iterate(LONGEST)) > 1
    for epoch, layout in enumerate([holding((0,), (), (0,)), holding((), (), (0,)), holding((0,), (), (0,))], 2):
        team.begin(verdict(epoch, *MEMBERS, layout=layout))
        assert len(team.iterate(LEAST + 1)) == (epoch == 4)
    # Also where all have again what they have at home.
    team.iterate(LONGEST)
    team.begin(verdict(5, *MEMBERS))
    assert len(team.iterate(LEAST + 1)) == 1
