"""A member's machine of a small job, and what it is told."""

import msgspec
import pytest

from harness.examples import paper_job
from recycle.control.membership.events import (
    Accuse,
    BuildFailed,
    Built,
    Decided,
    Died,
    Event,
    Exit,
    Halted,
    JoinReady,
    Noticed,
    Opened,
    Overdue,
    Paused,
    Prepare,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
    Reported,
    Resume,
    Stop,
    StoreBack,
    StoreGone,
    Unreplaced,
    WaitForJoiners,
    WarnUnprotected,
)
from recycle.control.membership.machine import Machine, State
from recycle.control.membership.messages import NOTHING, Death, Opening, Report, Verdict
from recycle.control.membership.view import SOLE, Member, ServerRank

JOB = paper_job(pipelines=2, stages=2)
A, B, C, D = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_0#0", "W1_1#0"))
NEW = Member.parse("W1_1#1")
FIRST = Verdict(0, tuple(map(str, (A, B, C, D))), 5)
SECOND = Verdict(1, tuple(map(str, (A, B, C))), 5)
DEATH = Death(str(D), "was killed", "agent", 1.0)


def verdict(epoch: int, *members: Member, step: int = 5, stop: str = "") -> Verdict:
    return Verdict(epoch, tuple(map(str, members)), step, stop=stop)


def report(member: Member, newest: int = 5, oldest: int = 5, epoch: int = 0, checkpoint: int | None = None) -> Report:
    return Report(str(member), epoch, newest, oldest, checkpoint)


class Told:
    """A machine, and events with ids of their own."""

    def __init__(self, me: Member = A, rank: ServerRank = SOLE) -> None:
        self.machine = Machine(me, JOB, rank)
        self.rank = rank
        self.count = 0

    def __call__(self, kind: type[Event], *content: object) -> tuple:
        self.count += 1
        return self.machine.handle(kind(f"{self.count}", *content))

    def halts(self, epoch: int, newest: int = 5, oldest: int = 5, checkpoint: int | None = None) -> tuple:
        mine = Report(str(self.machine.me), epoch, newest, oldest, checkpoint, rank=self.rank.number)
        return self(Halted, mine)

    @property
    def state(self) -> State:
        return self.machine.state


def in_state(state: State, me: Member = A) -> Told:
    told = Told(me)
    if state is State.JOINING:
        return told
    told(Decided, FIRST)
    if state is State.REBUILDING:
        return told
    told(Built, 0)
    if state is State.UNPROTECTED:
        told(StoreGone)
    elif state is State.FENCED:
        told(Decided, verdict(1, *sorted({A, B, C, D} - {me})))
    elif state is not State.TRAINING:
        told(Noticed, 0, "cause")
        if state is State.STOPPED:
            told(StoreGone)
        elif state is State.GATHERING:
            told.halts(0)
    assert told.state is state
    return told


def starting(me: Member = A) -> Told:
    """A machine of a run that starts, whose member has announced itself with version 5."""
    told = Told(me)
    told(Opened, Opening(0, FIRST.members))
    assert told.state is State.HALTING
    told.halts(-1)
    assert (told.state, told.machine.starts) == (State.GATHERING, True)
    return told


def test_a_run_begins_when_all_have_announced_themselves() -> None:
    told = starting()
    for member in (B, C):
        assert told(Reported, report(member, epoch=-1)) == ()
    assert told(Reported, report(D, epoch=-1)) == (Propose(FIRST),)
    assert told(Decided, FIRST) == (Rebuild(FIRST),)
    assert not told.machine.starts


def test_who_is_late_at_the_start_is_declared_dead_and_a_lost_stage_is_the_end() -> None:
    told = starting()
    told(Reported, report(C, epoch=-1))
    assert told(Overdue, -1, B) == (Accuse(B),)
    assert told(Died, Death(str(B), "did not come", "answer", 1.0)) == ()
    (proposed,) = told(Died, Death(str(D), "did not come", "answer", 1.0))
    assert proposed.verdict.stop.startswith("no live server of stage 1 is left")


def test_who_is_not_among_the_first_joins() -> None:
    told = Told(NEW)
    assert told(Opened, Opening(0, FIRST.members)) == ()
    assert told.state is State.JOINING


def test_every_state_knows_every_event() -> None:
    events = {each for kind in Event.__subclasses__() for each in (kind.__subclasses__() or [kind])}
    assert set(Machine.TABLE) == {(state, event) for state in State for event in events}


def test_a_failure_is_survived() -> None:
    told = Told(A)
    assert told(Decided, FIRST) == (Rebuild(FIRST),)
    assert told(Built, 0) == (Resume(0, 5),)
    assert told(Died, DEATH) == (RaiseAlarm(0, "W1_1#0 was killed"),)
    assert told(Reported, report(B)) == ()
    assert told.halts(0, 6, 5, 2) == (PublishReport(report(A, 6, 5, 0, 2)),)
    (proposal,) = told(Reported, report(C))
    assert proposal == Propose(Verdict(1, SECOND.members, 5, "memory", (DEATH,)))
    assert told(Decided, proposal.verdict) == (Rebuild(proposal.verdict),)
    assert told(Built, 1) == (Resume(1, 5),)
    assert told.state is State.TRAINING


@pytest.mark.parametrize("epoch", [-1, 1])
@pytest.mark.parametrize("state", State)
def test_events_of_other_epochs_are_left_alone_and_can_be_told_again(state: State, epoch: int) -> None:
    if state is State.JOINING:
        epoch -= 1
    told = in_state(state)
    for event in (
        Noticed("x", epoch, "cause"),
        Halted("x", report(A, epoch=epoch)),
        Built("x", epoch),
        BuildFailed("x", epoch, "cause"),
        Overdue("x", epoch, B),
        Paused("x", epoch, 6),
    ):
        assert told.machine.handle(event) == ()
    assert told.state is state


@pytest.mark.parametrize("state", [State.TRAINING, State.HALTING, State.GATHERING, State.REBUILDING])
def test_who_is_absent_from_a_verdict_exits(state: State) -> None:
    told = in_state(state)
    assert told(Decided, verdict(1, B, C, D)) == (Exit("W0_0#0 is not in the view of epoch 1"),)
    assert told.state is State.FENCED
    assert told(Decided, verdict(2, A, B, C, D)) == ()


@pytest.mark.parametrize("state", [each for each in State if each not in (State.FENCED, State.STOPPED)])
def test_who_is_declared_dead_exits(state: State) -> None:
    told = in_state(state, D)
    assert told(Died, DEATH) == (Exit("W1_1#0 was declared dead: it was killed"),)


def test_a_leader_that_decides_nothing_is_not_waited_for() -> None:
    second = in_state(State.GATHERING, B)
    for member in (A, C, D):
        assert second(Reported, report(member)) == ()
    assert second(Overdue, 0, A) == (Propose(Verdict(1, FIRST.members, 5)),)


def test_a_stage_that_nobody_takes_up_in_time_is_the_end() -> None:
    told = in_state(State.GATHERING)
    told(Reported, msgspec.structs.replace(report(C), kept=((5,), (5,))))
    told(Died, Death(str(B), "was killed", "agent", 1.0))
    assert not told.machine.waits
    assert told(Died, DEATH) == (WaitForJoiners((1,)),)
    assert told.machine.waits
    (proposal,) = told(Unreplaced, 0)
    assert isinstance(proposal, Propose)
    assert proposal.verdict.stop.startswith("no live server of stage 1 is left")


def test_in_a_pause_nobody_is_overdue_until_there_is_an_alarm() -> None:
    told = in_state(State.TRAINING)
    assert told(Paused, 0, 6) == ()
    assert told.state is State.HALTING
    assert told.halts(0, 6, 5) == (PublishReport(report(A, 6, 5)),)
    assert told(Overdue, 0, C) == ()
    assert told(Noticed, 0, "cause") == (RaiseAlarm(0, "cause"),)
    assert told(Overdue, 0, C) == (Accuse(C),)


def test_a_second_failure_in_the_rebuilding_begins_the_next_epoch() -> None:
    for event in (BuildFailed("x", 0, "cause"), Noticed("x", 0, "cause")):
        told = in_state(State.REBUILDING)
        assert told.machine.handle(event) == (RaiseAlarm(0, "cause"),)
        assert told.state is State.HALTING
        assert told(Built, 0) == ()
        assert told.halts(0) == (PublishReport(report(A)),)


def test_a_joiner_prepares_in_every_epoch_until_it_is_admitted() -> None:
    told = Told(NEW)
    assert told(Decided, FIRST) == (Prepare(FIRST.view),)
    assert told.halts(0, NOTHING, NOTHING) == (PublishReport(report(NEW, NOTHING, NOTHING)),)
    assert told(Decided, SECOND) == (Prepare(SECOND.view),)
    assert told.halts(1) == (PublishReport(report(NEW, epoch=1)),)
    admitted = verdict(2, A, B, C, NEW)
    assert told(Decided, admitted) == (Rebuild(admitted),)
    assert told(Built, 2) == (Resume(2, 5),)


def lose_a_stage(checkpoint: int | None) -> tuple[Told, tuple]:
    told = in_state(State.HALTING)
    told.halts(0, checkpoint=checkpoint)
    told(Reported, report(C, checkpoint=checkpoint))
    told(Died, Death(str(B), "was killed", "agent", 1.0))
    return told, told(Died, DEATH)


def test_without_a_checkpoint_a_lost_stage_ends_the_run_and_says_why() -> None:
    told, (proposal,) = lose_a_stage(None)
    assert isinstance(proposal, Propose)
    assert proposal.verdict.stop.startswith("no live server of stage 1 is left, and there is no checkpoint")
    assert told(Decided, proposal.verdict) == (Stop(proposal.verdict.stop, proposal.verdict),)
    assert told.state is State.STOPPED


def test_with_a_checkpoint_a_lost_stage_waits_for_new_servers() -> None:
    told, actions = lose_a_stage(3)
    assert actions == (WaitForJoiners((1,)),)
    assert told(JoinReady, report(NEW, NOTHING, NOTHING, checkpoint=2)) == (
        Propose(
            Verdict(
                1,
                ("W0_0#0", "W1_0#0", "W1_1#1"),
                2,
                "checkpoint",
                (Death(str(B), "was killed", "agent", 1.0), DEATH),
                ("W1_1#1",),
            )
        ),
    )


def test_without_the_store_training_goes_on_until_a_failure() -> None:
    told = in_state(State.TRAINING)
    assert told(StoreGone) == (WarnUnprotected(),)
    (stop,) = told(Noticed, 0, "an error")
    assert isinstance(stop, Stop)
    assert stop.reason == "an error, and without a store no failure can be survived"


def test_a_store_that_is_back_protects_again_or_shows_that_one_is_behind() -> None:
    told = in_state(State.UNPROTECTED)
    assert told(StoreBack, FIRST) == ()
    assert told.state is State.TRAINING
    told = in_state(State.UNPROTECTED)
    assert told(StoreBack, SECOND) == (Exit("W0_0#0 is behind: the run is in epoch 1"),)


@pytest.mark.parametrize("state", [State.JOINING, State.HALTING, State.GATHERING, State.REBUILDING])
def test_without_the_store_no_view_can_be_agreed_on(state: State) -> None:
    actions = in_state(state)(StoreGone)
    assert [type(action) for action in actions] == [Stop]


@pytest.mark.parametrize("state", [State.FENCED, State.STOPPED])
def test_the_end_is_the_end(state: State) -> None:
    told = in_state(state)
    epoch = told.machine.view.epoch
    for actions in (
        told(Noticed, epoch, "cause"),
        told(Died, DEATH),
        told.halts(epoch),
        told(Built, epoch),
        told(Decided, verdict(9, A, B, C, D)),
        told(StoreGone),
        told(StoreBack, SECOND),
    ):
        assert actions == ()
    assert told.state is state


def test_the_first_rank_of_a_server_proposes_when_all_ranks_have_reported() -> None:
    told, other = Told(A, ServerRank(0, 2)), Told(A, ServerRank(1, 2))
    for each in (told, other):
        each(Decided, FIRST)
        each(Built, 0)
        each(Noticed, 0, "cause")
        each.halts(0, 6, 5)
    reports = [msgspec.structs.replace(report(each), rank=rank) for each in (A, B, C, D) for rank in (0, 1)]
    answers = [told(Reported, each) for each in reports[1:]]
    assert answers[:-1] == [()] * 6
    # One rank of A has done the iteration, and the other one has not.
    assert answers[-1] == (Propose(verdict(1, A, B, C, D)),)
    assert [other(Reported, each) for each in reports] == [()] * 8
    assert other(Overdue, 0, B) == ()
