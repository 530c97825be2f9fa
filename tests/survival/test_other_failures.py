"""Servers hang, are cut off, are slow, raise, or lose their agent; the store goes, and comes back."""

import os
import re
import signal

import msgspec
import pytest

from harness.doors import STORE
from harness.processes import ancestors, children, send_signal, title
from harness.started import wait_until
from recycle.control.host.agent import FENCED, STOPPED
from recycle.faults.menu import Fault, Kind
from recycle.job import Server
from recycle.record.recording import InstantLine, ViewLine
from recycle.runtime.execute.injection import EXIT_STATUS
from recycle.runtime.recover.alarm_watch import AlarmWatch
from tests.survival.emulated import EVERYBODY, IMPATIENT, Doom, Once, Scenario, ScenarioServer, lives, never, settled

VICTIM, OTHER = Server(1, 0), Server(2, 1)
NAME = f"{VICTIM}#0"


def fault(kind, step=3, server=VICTIM, **fields):
    return Fault(kind, (server,), step=step, **fields)


def test_a_hung_worker_is_noticed_by_its_missing_heartbeat(tmp_path):
    result = Scenario(tmp_path, fault(Kind.STOP), durations=IMPATIENT).survive(*lives("W1_0"))
    assert result.deaths[NAME].noticed == "heartbeat"
    assert result.deaths[NAME].reason.startswith("has given no sign of life for")


def test_who_wakes_up_after_it_was_declared_dead_leaves_by_itself(tmp_path):
    wake = Once(
        lambda event: isinstance(event, ViewLine) and event.epoch == 1, lambda: scenario.signal(NAME, signal.SIGCONT)
    )
    others_go_on = settled("W1_0")

    def fenced(event):
        return others_go_on(event) and (tmp_path / "ends" / NAME).exists()

    scenario = Scenario(tmp_path, fault(Kind.STOP), until=fenced, on_event=wake, durations=IMPATIENT)
    result = scenario.survive(*lives("W1_0"))
    assert [each.epoch for each in result.views] == [0, 1]
    assert result.ends[NAME][0] == FENCED
    assert any(text.startswith(f"{NAME} ") for text in result.texts("end"))


def test_a_short_sleep_harms_nobody(tmp_path):
    result = Scenario(tmp_path, fault(Kind.STOP, duration=0.5)).survive(*lives())
    assert [each.epoch for each in result.views] == [0]


def test_a_slow_server_is_not_declared_dead(tmp_path):
    result = Scenario(tmp_path, fault(Kind.SLOW, factor=5.0), iterations=8).survive(*lives())
    assert result.deaths == {}


@pytest.mark.long
def test_one_instruction_may_last_longer_than_the_silence_that_means_death(tmp_path):
    result = Scenario(tmp_path, iterations=8, busy=NAME, durations=IMPATIENT).survive(*lives())
    assert [each.epoch for each in result.views] == [0]


@pytest.mark.long
def test_a_start_that_takes_longer_than_silence_is_waited_for(tmp_path):
    late = {"W0_0#0": 1.5 * IMPATIENT.silence}
    result = Scenario(tmp_path, iterations=4, late=late, durations=IMPATIENT).survive(*lives())
    assert [each.epoch for each in result.views] == [0]
    assert result.deaths == {}


def test_who_does_not_come_in_time_is_declared_dead_by_name_and_the_others_begin(tmp_path):
    durations = msgspec.structs.replace(IMPATIENT, start=8.0)
    result = Scenario(tmp_path, iterations=4, late={NAME: 600.0}, durations=durations).survive(*lives("W1_0"))
    assert [(each.epoch, len(each.servers)) for each in result.views] == [(0, 5)]
    assert (result.deaths[NAME].reason, result.deaths[NAME].noticed) == ("did not announce itself for 8 s", "answer")


@pytest.mark.parametrize(
    "dead", [pytest.param(("W1_0",), marks=pytest.mark.long, id="agent"), pytest.param(("W1_0", "W1_1"), id="host")]
)
def test_a_worker_dies_with_its_agent_and_a_host_with_all_of_its_servers(tmp_path, dead):
    killed = Fault(Kind.AGENT_KILL, tuple(map(Server.parse, dead)), step=3)
    result = Scenario(tmp_path, killed, until=settled(*dead), durations=IMPATIENT).survive(*lives(*dead))
    assert set(result.deaths) == {f"{each}#0" for each in dead}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        pytest.param(Kind.EXIT, EXIT_STATUS, marks=pytest.mark.long, id="exit"),
        pytest.param(Kind.EXCEPTION, 1, id="exception"),
    ],
)
def test_a_worker_that_ends_by_itself_is_as_dead_as_one_that_was_killed(tmp_path, kind, status):
    result = Scenario(tmp_path, fault(kind)).survive(*lives("W1_0"))
    assert result.deaths[NAME].reason == f"ended with status {status}"


def test_after_cut_connections_all_go_on_together(tmp_path):
    result = Scenario(tmp_path, fault(Kind.DISCONNECT)).survive(*lives())
    assert [(each.epoch, len(each.servers)) for each in result.views] == [(0, 6), (1, 6)]
    assert re.fullmatch(r"the connection to W\d_\d( or W\d_\d)? was closed", result.views[1].cause)
    assert result.deaths == {}


# The store.

LOST, BACK = "the store is lost", "the store is back"


class Heard:
    """Counts servers that say something, and does something once so many have."""

    def __init__(self, text, count, act):
        self.text = text
        self.count = count
        self.act = act
        self.servers = set()

    def __call__(self, event):
        if (
            isinstance(event, InstantLine)
            and event.kind in ("unprotected", "protected")
            and event.text.startswith(self.text)
        ):
            before = len(self.servers)
            self.servers.add(event.server)
            if before < self.count <= len(self.servers):
                self.act()


def test_training_goes_on_without_the_store_and_is_safe_again_with_the_next(tmp_path):
    loss = Fault(Kind.STORE_LOSS, step=3)
    heard = Heard(BACK, len(EVERYBODY), lambda: scenario.signal(NAME, signal.SIGKILL))
    scenario = Scenario(tmp_path, loss, until=settled("W1_0"), on_event=heard, durations=IMPATIENT)
    result = scenario.survive(*lives("W1_0"))
    kinds = [each.text[: len(LOST)] if isinstance(each, InstantLine) else type(each).__name__ for each in result.events]
    lost, back = len(kinds) - kinds[::-1].index(LOST), kinds.index(BACK[: len(LOST)])
    assert "IterationLine" in kinds[lost:back]
    assert [each.epoch for each in result.views] == [0, 1]


def test_a_failure_while_the_store_is_lost_is_the_end_with_a_clear_message(tmp_path):
    loss = Fault(Kind.STORE_LOSS, step=3)
    heard = Heard(LOST, len(EVERYBODY), lambda: scenario.signal(NAME, signal.SIGKILL))
    scenario = Scenario(tmp_path, loss, until=never, on_event=heard)
    result = scenario.run()
    result.require_fired(loss)
    assert "while the store was lost: go on from the last checkpoint, if there is one" in result.error
    assert re.search(r"a server failed \(the connection to W\d_\d( or W\d_\d)? was closed\)", result.error)
    assert {status for status, _ in result.ends.values()} == {STOPPED}


@pytest.mark.parametrize("when", ["in the same iteration", "later"])
def test_a_store_that_is_back_before_the_iteration_ends_protects_against_the_next_failure(tmp_path, monkeypatch, when):
    here, meet, look = os.getpid(), ScenarioServer.meet, AlarmWatch._look

    def tell_found(watch, board):
        # Called with a store that was found; the loss is noted until the end of the iteration.
        if watch.loss is not None:
            (tmp_path / f"found-{os.getpid()}").touch()
        look(watch, board)

    def lose_store(server, place):
        if place == "between 2":
            # Nobody looks at the store any more before the end of the iteration.
            (tmp_path / f"begun-{server._member}").touch()
            if str(server._member) == NAME:
                wait_until(lambda: len([*tmp_path.glob("begun-*")]) == len(EVERYBODY))
                # Of this run: below the process of the test are programs of other workers of the session too.
                above = ancestors(os.getpid())
                for each in children(above[above.index(here) - 1]):
                    if title(each) == STORE:
                        send_signal(each, signal.SIGKILL)
                wait_until(lambda: len([*tmp_path.glob("found-*")]) == len(EVERYBODY))
                if when != "later":
                    os.kill(os.getpid(), signal.SIGKILL)
        meet(server, place)

    monkeypatch.setattr(ScenarioServer, "meet", lose_store)
    monkeypatch.setattr(AlarmWatch, "_look", tell_found)
    over = Heard(BACK, len(EVERYBODY), lambda: scenario.signal(NAME, signal.SIGKILL))
    scenario = Scenario(tmp_path, until=settled("W1_0"), on_event=over, durations=IMPATIENT)
    result = scenario.survive(*lives("W1_0"))
    assert [each.epoch for each in result.views] == [0, 1]
    assert len(result.texts("protected")) == len(lives("W1_0")) + (when == "later")


# Rejoining.


def rejoin(server=VICTIM, kill=3, join=6):
    return fault(Kind.KILL, kill, server), fault(Kind.JOIN, join, server)


@pytest.mark.long
def test_who_is_to_come_back_while_the_store_is_lost_comes_back_with_it(tmp_path):
    kill, join = rejoin(kill=3, join=7)
    loss = Fault(Kind.STORE_LOSS, step=6)
    result = Scenario(tmp_path, kill, loss, join, until=settled(epoch=2), durations=IMPATIENT).survive(*lives(W1_0=1))
    assert "the store is lost: W1_0 is started again when it is back" in result.texts("warning")


def test_a_replacement_is_let_in_and_all_is_as_before(tmp_path):
    result = Scenario(tmp_path, *rejoin(), until=settled(epoch=2)).survive(*lives(W1_0=1))
    first, without, last = result.views
    assert (without.joined, last.joined) == ([], ["W1_0"])
    assert (last.period, last.throughput) == (first.period, first.throughput)
    assert without.period > first.period


@pytest.mark.parametrize(
    "doom",
    [
        pytest.param(Doom("W2_1#0", "rebuild", 1), marks=pytest.mark.long),
        pytest.param(Doom("W2_1#0", "connect", 2), marks=pytest.mark.long),
        Doom("W0_0#0", "rebuild", 1),
    ],
    ids=str,
)
def test_a_failure_while_a_server_is_let_in(tmp_path, doom):
    dead = doom.member[:4]
    Scenario(tmp_path, *rejoin(), dooms=[doom], until=settled(dead, epoch=2)).survive(*lives(dead, W1_0=1))


@pytest.mark.parametrize(
    "place", ["adopt", *(pytest.param(each, marks=pytest.mark.long) for each in ("start", "rebuild", "connect"))]
)
def test_a_joiner_that_dies_is_no_loss(tmp_path, place):
    doom = Doom("W1_0#1", place, 2 if place == "connect" else -1)

    others_go_on = settled("W1_0")

    def over(event):
        return others_go_on(event) and (tmp_path / "doomed").exists()

    Scenario(tmp_path, *rejoin(), dooms=[doom], until=over).survive(*lives("W1_0"))
