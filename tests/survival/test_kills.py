"""Servers are killed wherever a run can be, and the others make every iteration once and to the end."""

import pytest

from recycle.faults.menu import Fault, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.plan.instruction import Op
from tests.survival.emulated import GLOBAL, STAGGERED, Doom, Scenario, lives, never, settled


def kill(server, step, op=None):
    server = Server.parse(server)
    return Fault(Kind.KILL, (server,), step=step, instruction=op and InstructionPattern(f"{server.stage}{op.value}"))


# In the end, one server of each stage is left in the first.
KILLS = {
    "F, SEND_F, REDUCE, STEP": (
        STAGGERED,
        [("W2_1", 2, Op.F), ("W0_0", 4, Op.SEND_F), ("W1_1", 6, Op.REDUCE), ("W2_0", 8, Op.STEP)],
    ),
    "I, RECV_B, SEND_B": (STAGGERED, [("W2_1", 2, Op.I), ("W1_0", 5, Op.RECV_B), ("W0_1", 8, Op.SEND_B)]),
    "W, RECV_F": (STAGGERED, [("W1_1", 2, Op.W), ("W0_1", 5, Op.RECV_F)]),
    "B, REDUCE, STEP": (GLOBAL, [("W2_1", 2, Op.B), ("W1_0", 5, Op.REDUCE), ("W0_1", 8, Op.STEP)]),
}


@pytest.mark.parametrize(("mode", "kills"), KILLS.values(), ids=KILLS)
def test_a_kill_before_any_instruction_is_survived(tmp_path, mode, kills):
    faults = [kill(*each) for each in kills]
    result = Scenario(tmp_path, *faults, mode=mode).survive(*lives(*(server for server, _, _ in kills)))
    assert [each.epoch for each in result.views] == list(range(len(kills) + 1)), result.story
    for (server, step, _), view in zip(kills, result.views[1:], strict=True):
        assert server not in view.servers
        # Who begins iteration 3 has version 3, and members are never more than one version apart.
        assert view.step in (step - 1, step, step + 1)
        death = result.deaths[f"{server}#0"]
        assert (death.reason, death.noticed) == ("was killed by signal 9 (SIGKILL)", "agent")
    for each in result.recoveries:
        assert each.noticed <= each.agreed <= each.rebuilt <= each.restored <= each.redone


@pytest.mark.parametrize(("first", "last"), [("W0_0", "W1_1"), pytest.param("W1_1", "W0_0", marks=pytest.mark.long)])
def test_the_first_and_the_last_iteration_are_no_exception_nor_is_the_leader(tmp_path, first, last):
    faults = kill(first, 0, Op.F), kill(last, 11, Op.STEP)
    Scenario(tmp_path, *faults).survive(*lives(first, last))


def test_a_fault_that_did_not_happen_is_told(tmp_path):
    kills = kill("W1_0", 3, Op.F), kill("W1_0", 5, Op.F)
    result = Scenario(tmp_path, *kills).run()
    result.require_kept(*lives("W1_0"), iterations=12)
    assert [each.fault for each in result.fired] == [str(kills[0])]
    assert result.texts("warning") == [
        f"{kills[1]}: it did not happen, because its server or its instruction was not there"
    ]


def dooms(shown, *others):
    """Of which those that leaders and others have in common are tried with leaders."""
    return pytest.mark.parametrize(
        "doom", [*shown, *(pytest.param(each, marks=pytest.mark.long) for each in others)], ids=str
    )


@dooms(
    [Doom("W0_0#0", "start", -1), Doom("W1_0#0", "rebuild", -1), Doom("W0_0#0", "between 12", 0)],
    Doom("W1_1#0", "start", -1),
    Doom("W0_0#0", "connect", 0),
    Doom("W2_1#0", "between 0", 0),
    Doom("W1_0#0", "between 12", 0),
)
def test_there_is_no_moment_before_the_first_or_after_the_last_iteration(tmp_path, doom):
    Scenario(tmp_path, dooms=[doom]).survive(*lives(doom.member[:4]))


@pytest.mark.parametrize(
    "dead",
    [("W0_0", "W2_1"), *(pytest.param(each, marks=pytest.mark.long) for each in (("W0_1", "W1_1"), ("W1_0", "W1_1")))],
    ids=" ".join,
)
def test_two_at_once(tmp_path, dead):
    fault = Fault(Kind.KILL, tuple(map(Server.parse, dead)), at=0.05)
    result = Scenario(tmp_path, fault, until=settled(*dead)).survive(*lives(*dead))
    assert set(result.deaths) == {f"{each}#0" for each in dead}


@dooms(
    [Doom("W0_0#0", "drop", 0), Doom("W0_0#0", "make", 0), Doom("W1_1#0", "rebuild", 0), Doom("W0_0#0", "connect", 1)],
    Doom("W1_0#0", "drop", 0),
    Doom("W0_0#0", "rebuild", 0),
    Doom("W1_0#0", "connect", 1),
)
def test_a_second_one_during_the_recovery_from_the_first(tmp_path, doom):
    Scenario(tmp_path, kill("W2_1", 3, Op.F), dooms=[doom]).survive(*lives("W2_1", doom.member[:4]))


def test_a_stage_without_servers_ends_a_run_without_checkpoints(tmp_path):
    fault = Fault(Kind.KILL, tuple(Server(pipeline, 1) for pipeline in range(3)), at=0.05)
    result = Scenario(tmp_path, fault, until=never).run()
    result.require_fired(fault)
    assert result.error == "no live server of stage 1 is left; go on from the last checkpoint, if there is one"
    assert all(status == 74 for status, _ in result.ends.values())
