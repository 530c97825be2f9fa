"""Joiners get in while servers are killed: real processes under the supervisor, with emulated stages."""

import os
import signal
import time

import pytest

from harness.emulated_server import Emulated, EmulatedServer
from harness.examples import paper_job
from recycle.control.membership.view import Member
from recycle.faults.menu import Fault, Kind
from recycle.job import Server
from recycle.plan.instruction import Op
from recycle.record.recording import DeathLine, ViewLine
from recycle.runtime.errors import NotFinite
from tests.runtime.recover.survivors import JOB, JOINER, REJOIN, noting, survive

PEER = Member(Server(0, 0), 0)
SECOND = JOINER._replace(incarnation=2)
NEIGHBOUR = Member(Server(1, 1), 0)
THREE = paper_job(pipelines=3, stages=2, micro_batches=2, released=0)
SERVER_OF_THREE = Member(Server(2, 0), 0)


def emulated(server, reporter):
    return noting(EmulatedServer)(Emulated(JOB, True, 0.002, 0), server, reporter)


def joined(view):
    return JOINER in view.members


def of(notes, member, kind):
    return [note for note in notes[member] if note.kind == kind]


def assert_followed(notes):
    """The joiner got its state in the background, and every version that it started from was its peer's."""
    last = [note for note in notes[JOINER] if note.kind in ("adopt", "follow")][-1]
    assert last.thread == f"following as {JOINER}"
    first = of(notes, JOINER, "iterate")[0]
    assert first.step == last.step
    assert first.digest == last.digest
    assert_equal_to_the_end(notes)


def assert_equal_to_the_end(notes, peer=PEER, joiner=JOINER):
    theirs = {note.step: note.digest for note in of(notes, peer, "iterate")}
    ours = of(notes, joiner, "iterate")
    assert len(ours) >= 10
    for note in ours:
        assert theirs[note.step] == note.digest


def test_a_joiner_is_let_in_with_what_it_followed(tmp_path):
    events, notes = survive(tmp_path, emulated, joined)
    assert_followed(notes)
    assert {tuple(each.joined) for each in events if isinstance(each, ViewLine)} == {(), ("W1_0",)}
    assert len(of(notes, PEER, "serve")) == 1


@pytest.mark.parametrize("looks", [1, 3])
def test_a_joiner_gets_in_though_who_serves_it_is_killed(tmp_path, looks):
    """At the moment when it begins to serve, or later."""
    seen = []

    def trouble(trainee):
        if trainee.serving and trainee.member == SERVER_OF_THREE:
            seen.append(None)
            if len(seen) == looks:
                os.kill(os.getpid(), signal.SIGKILL)

    def emulate(server, reporter):
        return noting(EmulatedServer)(Emulated(THREE, True, 0.002, 0), server, reporter)

    _, notes = survive(tmp_path, emulate, joined, trouble, job=THREE)
    assert len(of(notes, SERVER_OF_THREE, "serve")) == 1
    assert_equal_to_the_end(notes)


def test_a_joiner_gets_in_though_somebody_else_is_killed_meanwhile(tmp_path):
    def trouble(trainee):
        if trainee.member == NEIGHBOUR and (tmp_path / "serving").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    events, notes = survive(tmp_path, emulated, joined, trouble)
    assert_equal_to_the_end(notes)
    assert {each.server for each in events if isinstance(each, DeathLine)} == {"W1_0", "W1_1"}


def test_a_joiner_gets_in_though_a_step_is_taken_back_meanwhile(tmp_path):
    class Spoil:
        """The last stage fails before a step, when the first one has made it."""

        def __init__(self, trainee):
            self.trainee = trainee
            self.done = False

        def before(self, _, instruction):
            serving = (tmp_path / "serving").exists()
            if serving and instruction.op is Op.STEP and self.trainee.member.server.stage == 1 and not self.done:
                self.done = True
                notes = tmp_path / "notes" / f"{PEER}.txt"
                while f"stepped\t{self.trainee.newest + 1}\t" not in notes.read_text():
                    time.sleep(0.002)
                raise NotFinite("the test says so")

        def after(self, _, instruction, __):
            if self.trainee.member == PEER and instruction.op is Op.STEP:
                self.trainee.note("stepped", self.trainee.newest)

    _, notes = survive(tmp_path, emulated, joined, hooks=lambda trainee: (Spoil(trainee),))
    assert of(notes, PEER, "undo")
    assert_equal_to_the_end(notes)


def test_a_joiner_that_dies_while_it_copies_stops_nobody_and_the_next_one_gets_in(tmp_path):
    def trouble(trainee):
        if trainee.member == JOINER and trainee.newest:
            os.kill(os.getpid(), signal.SIGKILL)

    class Fragile(noting(EmulatedServer)):
        def follow(self, parts):
            super().follow(parts)
            trouble(self)

    def emulate(server, reporter):
        return Fragile(Emulated(JOB, True, 0.002, 0), server, reporter)

    faults = (*REJOIN, Fault(Kind.JOIN, (JOINER.server,), step=40))
    events, notes = survive(tmp_path, emulate, lambda view: SECOND in view.members, faults=faults)
    assert of(notes, JOINER, "follow")
    assert len({each.epoch for each in events if isinstance(each, ViewLine)}) < 20
    assert_equal_to_the_end(notes, joiner=SECOND)
