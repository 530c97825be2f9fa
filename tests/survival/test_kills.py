"""Servers are killed wherever a run can be, and the others make every iteration once and to the end."""

import pytest

from recycle.faults.menu import Fault, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.plan.instruction import Op
from tests.survival.emulated import GLOBAL, STAGGERED, Doom, Scenario, lives, never, settled

pytestmark = pytest.mark.timeout(60)
CASES = [(STAGGERED, op) for op in Op if op is not Op.B and not op.is_copy] + [
    (GLOBAL, op) for op in (Op.B, Op.REDUCE, Op.STEP)
]


def kill(server, step, op=None):
    server = Server.parse(server)
    return Fault(Kind.KILL, (server,), step=step, instruction=op and InstructionPattern(op, server.stage))


@pytest.mark.parametrize(("mode", "op"), CASES, ids=[f"{mode.optimizer}-{op.value}" for mode, op in CASES])
def test_a_kill_before_any_instruction_is_survived(tmp_path, mode, op):
    programs = Scenario(tmp_path, mode=mode).plan.programs
    server = str([server for server, program in programs.items() if any(each.op is op for each in program)][-1])
    fault = kill(server, 3, op)
    result = Scenario(tmp_path, fault, mode=mode).run()
    result.require_fired(fault)
    result.require_kept(*lives(server), iterations=12)
    assert [each.epoch for each in result.views] == [0, 1]
    # Who begins iteration 3 has version 3, and members are never more than one version apart.
    assert result.views[1].step in (2, 3, 4)
    death = result.deaths[f"{server}#0"]
    assert (death.reason, death.noticed) == ("was killed by signal 9 (SIGKILL)", "agent")
    recovery = result.recoveries[0]
    assert recovery.noticed <= recovery.agreed <= recovery.rebuilt <= recovery.restored <= recovery.redone


@pytest.mark.parametrize("step", [0, 11])
@pytest.mark.parametrize("server", ["W0_0", "W1_1"])
def test_the_first_and_the_last_iteration_are_no_exception_nor_is_the_leader(tmp_path, server, step):
    fault = kill(server, step, Op.STEP if step else Op.F)
    result = Scenario(tmp_path, fault).run()
    result.require_fired(fault)
    result.require_kept(*lives(server), iterations=12)


def test_a_fault_that_did_not_happen_is_told(tmp_path):
    kills = kill("W1_0", 3, Op.F), kill("W1_0", 5, Op.F)
    result = Scenario(tmp_path, *kills).run()
    result.require_kept(*lives("W1_0"), iterations=12)
    assert [each.fault for each in result.fired] == [str(kills[0])]
    assert result.texts("warning") == [
        f"{kills[1]}: it did not happen, because its server or its instruction was not there"
    ]


@pytest.mark.parametrize(
    "doom",
    [
        Doom("W1_1#0", "start", -1),
        Doom("W0_0#0", "start", -1),
        Doom("W1_0#0", "rebuild", -1),
        Doom("W0_0#0", "connect", 0),
        Doom("W2_1#0", "between 0", 0),
        Doom("W1_0#0", "between 12", 0),
        Doom("W0_0#0", "between 12", 0),
    ],
    ids=str,
)
def test_there_is_no_moment_before_the_first_or_after_the_last_iteration(tmp_path, doom):
    result = Scenario(tmp_path, dooms=[doom]).run()
    result.require_doomed(doom)
    result.require_kept(*lives(doom.member[:4]), iterations=12)


@pytest.mark.parametrize("dead", [("W0_1", "W1_1"), ("W0_0", "W2_1"), ("W1_0", "W1_1")], ids=" ".join)
def test_two_at_once(tmp_path, dead):
    fault = Fault(Kind.KILL, tuple(map(Server.parse, dead)), at=0.05)
    result = Scenario(tmp_path, fault, until=settled(*dead)).run()
    result.require_fired(fault)
    result.require_kept(*lives(*dead))
    assert set(result.deaths) == {f"{each}#0" for each in dead}


@pytest.mark.parametrize(
    "doom",
    [
        Doom("W1_0#0", "drop", 0),
        Doom("W0_0#0", "drop", 0),
        Doom("W0_0#0", "make", 0),
        Doom("W1_1#0", "rebuild", 0),
        Doom("W0_0#0", "rebuild", 0),
        Doom("W1_0#0", "connect", 1),
        Doom("W0_0#0", "connect", 1),
    ],
    ids=str,
)
def test_a_second_one_during_the_recovery_from_the_first(tmp_path, doom):
    fault = kill("W2_1", 3, Op.F)
    result = Scenario(tmp_path, fault, dooms=[doom]).run()
    result.require_fired(fault)
    result.require_doomed(doom)
    result.require_kept(*lives("W2_1", doom.member[:4]), iterations=12)


def test_failures_until_one_server_of_each_stage_is_left(tmp_path):
    faults = [kill("W2_1", 2, Op.F), kill("W0_0", 4, Op.SEND_F), kill("W1_1", 6, Op.REDUCE), kill("W2_0", 8, Op.STEP)]
    result = Scenario(tmp_path, *faults).run()
    result.require_fired(*faults)
    result.require_kept("W0_1#0", "W1_0#0", iterations=12)
    assert set(result.views[-1].servers) == {"W0_1", "W1_0"}


def test_a_stage_without_servers_ends_a_run_without_checkpoints(tmp_path):
    fault = Fault(Kind.KILL, tuple(Server(pipeline, 1) for pipeline in range(3)), at=0.05)
    result = Scenario(tmp_path, fault, until=never).run()
    result.require_fired(fault)
    assert result.error.startswith("no live server of stage 1 is left, and there is no checkpoint that every server")
    assert all(status == 74 for status, _ in result.ends.values())
