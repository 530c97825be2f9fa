"""Every way to break a plan is found, each by a message of its own."""

from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job, paper_plan, plan_of, programs_of
from recycle.holding import with_own_layout
from recycle.job import Job, Server, Stage
from recycle.plan.batch import first_of_each
from recycle.plan.checker import check_plan, rows_around
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan, Provenance
from recycle.planner.make import make_plan
from recycle.planner.model.lowering import lower
from tests.strategies import placed_and_scheduled, scheduled

PLAN = paper_plan()
COMPUTE = paper_plan(form="compute")
STAGE = Stage(1, 1, 1, 1, 0, 1, 0, 4)


@cache
def v_plan(form="lowered"):
    return make_plan(Job(2, 3, (STAGE,) * 4, (1,) * 3, placement=((0, 3), (1, 2))), (), Mode(), QUICK, form)


def edit(plan, server, change):
    """The plan with one program changed by a function on its list of texts."""
    server = Server.parse(server)
    rows = [str(each) for each in plan.programs[server]]
    change(rows)
    programs = {**plan.programs, server: tuple(Instruction.parse(row) for row in rows)}
    return msgspec.structs.replace(plan, programs=programs)


def only(plan, rule, message):
    """The first violation, which is of this rule and says this."""
    first = check_plan(plan)[0]
    assert first.rule == rule, first
    assert message in first.message, first
    return first


def swap(first, second):
    def change(rows):
        one, two = rows.index(first), rows.index(second)
        rows[one], rows[two] = rows[two], rows[one]

    return change


def assemble(problem, compute, form="lowered"):
    lists = lower(problem.job, run_clock(problem.job, problem.mode, compute))[1] if form == "lowered" else compute
    return msgspec.structs.replace(plan_of(problem.job, problem.dead, problem.mode, lists, form), baseline=0)


@given(scheduled(), st.sampled_from(["lowered", "compute"]))
def test_what_the_planner_makes_is_legal_in_both_forms(case, form):
    problem, compute = case
    assert check_plan(assemble(problem, compute, form)) == ()


@given(st.one_of(scheduled(), placed_and_scheduled()), st.data())
def test_what_is_left_of_a_legal_plan_for_a_smaller_batch_can_be_executed(case, data):
    problem, compute = case
    number = data.draw(st.integers(1, problem.job.micro_batches))
    plan, job = assemble(problem, compute), msgspec.structs.replace(problem.job, micro_batches=number)
    programs = {server: tuple(first_of_each(program, number)) for server, program in plan.programs.items()}
    clock = run_clock(job, plan.mode, programs)
    figures = {"makespan": clock.makespan, "period": clock.period}
    found = check_plan(msgspec.structs.replace(plan, job=job, programs=programs, **figures))
    assert {each.rule for each in found} <= {"update order"}


def test_a_dropped_compute_instruction_is_missed():
    only(edit(COMPUTE, "W0_0", lambda rows: rows.remove("0W0.5")), "once", "micro-batch 0.5 has no W at stage 0")


def test_a_duplicate_names_both_places():
    broken = edit(COMPUTE, "W0_0", lambda rows: rows.append("0F0.0"))
    violation = only(broken, "once", "0F0.0 does the F that W0_0[0] has done already")
    assert (violation.server, violation.index) == (Server(0, 0), len(COMPUTE.programs[Server(0, 0)]))


def test_work_at_two_servers_is_found():
    def moved(plan):
        plan = edit(plan, "W0_2", lambda rows: rows.remove("2W0.5"))
        return edit(plan, "W2_2", lambda rows: rows.append("2W0.5"))

    only(moved(COMPUTE), "together", "2W0.5 is on W2_2, and W0_2[")


def test_a_gradient_before_its_forward_is_found():
    only(edit(COMPUTE, "W0_3", swap("3F0.0", "3I0.0")), "together", "comes before the F it needs")


def test_a_weight_gradient_before_its_input_gradient_is_found():
    only(edit(COMPUTE, "W0_0", swap("0I0.5", "0W0.5")), "together", "0W0.5 comes before the I it needs")


def test_leaving_home_is_found_and_allowed_to_a_free_routing():
    plan = COMPUTE
    for row in ("2F0.5", "2I0.5", "2W0.5"):
        plan = edit(plan, "W0_2", lambda rows, row=row: rows.remove(row))
        plan = edit(plan, "W2_2", lambda rows, row=row: rows.append(row))
    only(plan, "routing", "2F0.5 is away from home: W0_2 is alive")
    free = msgspec.structs.replace(plan, mode=Mode(routing="free"))
    assert {violation.rule for violation in check_plan(free)} <= {"figures", "deadlock"}


def test_a_role_is_a_home():
    job = paper_job()
    canonical = paper_plan(failed=(Server(2, 2),), form="compute")
    programs = dict(canonical.programs)
    programs[Server(2, 2)] = programs.pop(Server(1, 2))
    plan = msgspec.structs.replace(canonical, dead=job.dead_servers([Server(1, 2)]), programs=programs)
    only(plan, "routing", "is away from home")
    roles = {Server(2, 2): Server(1, 2)}
    assert check_plan(msgspec.structs.replace(plan, roles=roles)) == ()
    wrong = msgspec.structs.replace(plan, roles={Server(0, 2): Server(2, 2)})
    only(wrong, "roles", "2 servers act as W2_2")
    only(msgspec.structs.replace(plan, roles={Server(0, 1): Server(1, 2)}), "roles", "another stage's parameters")
    only(msgspec.structs.replace(plan, roles={Server(1, 2): Server(0, 2)}), "roles", "W1_2 is dead and cannot act")
    assert job == plan.job


def test_too_much_memory_is_found_at_the_first_instruction_that_takes_it():
    stages = tuple(msgspec.structs.replace(stage, limit=3) for stage in COMPUTE.job.stages)
    tight = msgspec.structs.replace(COMPUTE, job=msgspec.structs.replace(COMPUTE.job, stages=stages))
    violation = only(tight, "memory", "brings W0_0 to 4 activations, and its limit is 3")
    assert COMPUTE.programs[Server(0, 0)][violation.index].op is Op.F


def test_a_dead_server_has_no_program_and_a_live_one_has():
    programs = {**PLAN.programs, Server(1, 2): ()}
    only(msgspec.structs.replace(PLAN, programs=programs), "servers", "W1_2 is dead and has a program")
    programs = {server: program for server, program in PLAN.programs.items() if server != Server(0, 0)}
    only(msgspec.structs.replace(PLAN, programs=programs), "servers", "W0_0 is alive and has no program")
    dead = PLAN.job.dead_servers(Server(pipeline, 2) for pipeline in range(3))
    programs = {server: program for server, program in PLAN.programs.items() if server.stage != 2}
    only(msgspec.structs.replace(PLAN, dead=dead, programs=programs), "servers", "stage 2 has no live server")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0F0.0", "1F0.0", "is of stage 1, and W0_0 holds stage 0"),
        ("0F0.0", "0F0.6", "there is no micro-batch 0.6"),
        ("0F0.0", "0F3.0", "there is no micro-batch 3.0"),
        ("0SEND_F0.0>W0_1", "0SEND_F0.0>W1_2", "W1_2 is no live server"),
    ],
)
def test_instructions_that_cannot_be(old, new, message):
    broken = edit(PLAN, "W0_0", lambda rows: rows.__setitem__(rows.index(old), new))
    violation = only(broken, "instructions", message)
    assert str(broken.programs[violation.server][violation.index]) == new


def test_forms_and_modes_have_their_ops():
    only(edit(COMPUTE, "W0_0", lambda rows: rows.append("0STEP")), "instructions", "no place in a plan of compute form")
    send = edit(COMPUTE, "W0_0", lambda rows: rows.insert(1, "0SEND_F0.0>W0_1"))
    only(send, "instructions", "no place in a plan of compute form")
    only(msgspec.structs.replace(COMPUTE, mode=Mode("fused")), "instructions", "a fused backward has B only")


def test_transfers_need_their_partners_and_places():
    drop = edit(PLAN, "W0_0", lambda rows: rows.remove("0SEND_F0.3>W0_1"))
    only(drop, "transfers", "W0_0 lacks 0SEND_F0.3>W0_1")
    drop = edit(PLAN, "W0_1", lambda rows: rows.remove("1RECV_F0.3<W0_0"))
    only(drop, "transfers", "W0_1 lacks 1RECV_F0.3<W0_0")
    wrong = edit(PLAN, "W0_0", lambda rows: rows.__setitem__(rows.index("0SEND_F0.3>W0_1"), "0SEND_F0.3>W2_1"))
    assert any("0SEND_F0.3>W2_1 has no partner" in each.message for each in check_plan(wrong))
    twice = edit(PLAN, "W0_0", lambda rows: rows.insert(rows.index("0SEND_F0.3>W0_1"), "0SEND_F0.3>W0_1"))
    only(twice, "transfers", "0SEND_F0.3>W0_1 is there twice")
    early = edit(PLAN, "W0_0", swap("0F0.0", "0SEND_F0.0>W0_1"))
    only(early, "transfers", "must come behind W0_0[1] 0F0.0")
    late = edit(PLAN, "W0_1", swap("1RECV_F0.0<W0_0", "1F0.0"))
    only(late, "transfers", "must come before W0_1[0] 1F0.0")


def test_a_send_comes_before_the_next_compute_instruction():
    late = edit(PLAN, "W0_0", swap("0SEND_F0.0>W0_1", "0F0.1"))
    violation = only(late, "transfers", "0SEND_F0.0>W0_1 must come before W0_0[1] 0F0.1")
    assert violation.server == Server(0, 0)
    # By the clock, which sees no transfers, it is as good as before.
    assert run_clock(late.job, late.mode, late.programs).period == PLAN.period


def test_updates_come_once_and_last():
    only(edit(PLAN, "W0_0", lambda rows: rows.remove("0STEP")), "updates", "has REDUCE")
    only(edit(PLAN, "W0_0", lambda rows: rows.append("0STEP")), "updates", "has REDUCE STEP STEP")
    only(edit(PLAN, "W0_0", swap("0REDUCE", "0STEP")), "updates", "has STEP REDUCE")
    early = edit(PLAN, "W0_0", lambda rows: rows.insert(len(rows) - 3, rows.pop(rows.index("0REDUCE"))))
    only(early, "updates", "comes after W0_0 reduces its gradients")


def test_both_ends_must_agree_on_the_order():
    swapped = edit(PLAN, "W0_1", swap("1RECV_F0.1<W0_0", "1RECV_F0.2<W0_0"))
    first = check_plan(swapped)[0]
    assert first.rule in {"pair order", "transfers"}
    assert any(each.rule == first.rule for each in check_plan(swapped))


def test_a_deadlock_names_who_waits_for_whom():
    job = paper_job(pipelines=2, stages=2, micro_batches=1)
    rows = {
        "W0_0": "0F0.0 0SEND_F0.0>W0_1 0RECV_B0.0<W0_1 0I0.0 0W0.0 0REDUCE 0STEP",
        "W1_0": "0F1.0 0SEND_F1.0>W1_1 0RECV_B1.0<W1_1 0I1.0 0W1.0 0REDUCE 0STEP",
        "W0_1": "1RECV_F0.0<W0_0 1F0.0 1I0.0 1SEND_B0.0>W0_0 1W0.0 1REDUCE 1STEP",
        "W1_1": "1RECV_F1.0<W1_0 1F1.0 1I1.0 1SEND_B1.0>W1_0 1W1.0 1REDUCE 1STEP",
    }
    plan = plan_of(job, (), Mode(), programs_of(rows), "lowered")
    assert (plan.makespan, plan.period) == (5, 8)
    assert check_plan(plan) == ()
    crossed = edit(plan, "W0_0", swap("0SEND_F0.0>W0_1", "0RECV_B0.0<W0_1"))
    violation = only(crossed, "deadlock", "0RECV_B0.0<W0_1 waits for ever: W0_1 is at 1RECV_F0.0<W0_0")
    assert (violation.server, violation.index) == (Server(0, 0), 1)


def test_a_compute_plan_can_deadlock_too():
    # Stage 0 wants the gradient of 0.0 before it forwards 0.1, and stage 1 forwards 0.1 before it returns it.
    job = paper_job(pipelines=1, stages=2, micro_batches=2)
    rows = {"W0_0": "0F0.0 0I0.0 0W0.0 0F0.1 0I0.1 0W0.1", "W0_1": "1F0.0 1F0.1 1I0.0 1W0.0 1I0.1 1W0.1"}
    provenance = Provenance("test", 0, "", "", "bounded")
    plan = Plan(job, job.dead_servers(()), {}, Mode(), "compute", 0, 0, 0, 0, provenance, programs_of(rows))
    only(plan, "deadlock", "0I0.0 waits for ever")


def test_figures_are_recomputed():
    only(msgspec.structs.replace(PLAN, period=29), "figures", "says period 29, and its instructions take 30")
    only(msgspec.structs.replace(PLAN, makespan=1), "figures", "says makespan 1, and its instructions take")
    only(msgspec.structs.replace(PLAN, bound=31), "figures", "no period is below 31, and its own is 30")


@given(st.data())
@settings(max_examples=200)
def test_no_mutation_passes_unless_it_is_another_legal_plan(data):
    """Swapping, dropping, duplicating or replacing an instruction is caught, or leaves the recorded figures true."""
    plan = data.draw(st.sampled_from([PLAN, v_plan()]))
    server = data.draw(st.sampled_from(sorted(plan.programs)))
    program = list(plan.programs[server])
    place = data.draw(st.integers(0, len(program) - 1))
    kind = data.draw(st.sampled_from(["drop", "duplicate", "swap", "peer"]))
    if kind == "drop":
        del program[place]
    elif kind == "duplicate":
        program.insert(data.draw(st.integers(0, len(program))), program[place])
    elif kind == "swap":
        other = data.draw(st.integers(0, len(program) - 1))
        program[place], program[other] = program[other], program[place]
    elif program[place].peer is not None:
        program[place] = msgspec.structs.replace(
            program[place], peer=data.draw(st.sampled_from(sorted(set(plan.programs) - {program[place].peer})))
        )
    broken = msgspec.structs.replace(plan, programs={**plan.programs, server: tuple(program)})
    violations = check_plan(broken)
    if kind in ("drop", "duplicate") or (kind == "peer" and program[place].peer is not None):
        assert violations
    elif not violations:
        clock = run_clock(broken.job, broken.mode, broken.programs)
        assert (clock.makespan, clock.period) == (plan.makespan, plan.period)


def test_rows_around_mark_the_wrong_one():
    broken = edit(PLAN, "W0_0", lambda rows: rows.__setitem__(4, "0F0.9"))
    rows = rows_around(broken, check_plan(broken)[0])
    assert [row.startswith(">") for row in rows] == [False] * 3 + [True] + [False] * 3
    assert rows[3] == "> W0_0[4] 0F0.9"


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        (lambda rows: rows.__setitem__(0, "1F0.0"), "instructions", "holds chunk 0 and chunk 3"),
        (lambda rows: rows.remove("3F0.1"), "once", "micro-batch 0.1 has no F at chunk 3"),
        (lambda rows: rows.remove("3STEP"), "updates", "once for each of its chunks"),
        (lambda rows: rows.remove("0SEND_F0.1>W0_1"), "transfers", "W0_0 lacks 0SEND_F0.1>W0_1"),
    ],
)
def test_each_chunk_of_a_server_has_its_own_work(change, rule, message):
    assert not check_plan(v_plan())
    only(edit(v_plan(), "W0_0", change), rule, message)


def later_chunk_last(rows):
    rows.extend([rows.pop(-4), rows.pop(-3)])


def test_servers_reduce_their_chunks_in_one_order_and_as_they_are_ready():
    crossed = edit(v_plan(), "W0_0", later_chunk_last)
    last, first = str(crossed.programs[Server(0, 0)][-4]), str(crossed.programs[Server(1, 0)][-4])
    violations = check_plan(crossed)
    assert {(each.rule, str(each.server)) for each in violations} == {("deadlock", "W0_0"), ("deadlock", "W1_0")}
    assert violations[0].message == f"{last} waits for ever: W1_0 is at {first}"
    assert check_plan(edit(crossed, "W1_0", later_chunk_last))[0].rule == "update order"


def test_neighbouring_chunks_of_a_server_exchange_nothing():
    plan = v_plan()
    assert not any(each.op.is_transfer and {each.stage, each.peer.stage} == {1} for each in plan.programs[Server(0, 1)])
    send = edit(plan, "W0_1", lambda rows: rows.insert(rows.index("1F0.0") + 1, "1SEND_F0.0>W0_1"))
    only(send, "transfers", "has no partner")


@pytest.mark.parametrize("form", ["lowered", "compute"])
@pytest.mark.parametrize(("op", "first", "second"), [(Op.F, 0, 1), (Op.I, 1, 0)])
@pytest.mark.parametrize("own", [False, True])
def test_neighbouring_chunks_of_a_server_compute_in_the_order_of_the_model(own, op, first, second, form):
    job = Job(2, 3, (STAGE,) * 4, (1,) * 3, placement=((0, 1), (2, 3)))
    plan = make_plan(with_own_layout(job) if own else job, (), Mode(), QUICK, form)
    server = Server(0, 0)
    needed, early = (
        next(each for each in plan.programs[server] if each.stage == chunk and op in each.op.phases)
        for chunk in (first, second)
    )
    early = msgspec.structs.replace(early, home=needed.home, micro_batch=needed.micro_batch)

    def early_first(rows):
        rows.insert(rows.index(str(needed)), rows.pop(rows.index(str(early))))

    broken = edit(plan, "W0_0", early_first)
    place = broken.programs[server].index(needed)
    only(broken, "together", f"{early} comes before the {op.value} it needs, W0_0[{place}] {needed}")


def test_the_chunks_of_a_server_share_its_limit():
    plan = v_plan("compute")
    stages = tuple(msgspec.structs.replace(stage, limit=2) for stage in plan.job.stages)
    tight = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, stages=stages))
    assert {each.rule for each in check_plan(tight)} == {"memory"}
