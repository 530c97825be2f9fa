"""Illegal plans are drawn all the same, in every view, with what is wrong marked and said at the head."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_plan, placed_job, plan_of
from recycle.holding import own_layout, with_layout
from recycle.job import Server
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.view.subject import subject_of
from recycle.view.terminal import listing
from tests.strategies import scheduled
from tests.view.samples import all_views


def at(plan, server, change):
    program = list(plan.programs[server])
    change(program)
    return msgspec.structs.replace(plan, programs={**plan.programs, server: tuple(program)})


def place(program, text):
    return next(index for index, each in enumerate(program) if str(each) == text)


def exchange(program):
    one, other = place(program, "0F0.0"), place(program, "0SEND_F0.0>W0_1")
    program[one], program[other] = program[other], program[one]


WRONG = {
    "a missing forward": lambda plan: at(plan, Server(0, 0), lambda each: each.pop(place(each, "0F0.1"))),
    "an instruction twice": lambda plan: at(
        plan, Server(0, 1), lambda each: each.insert(0, Instruction(Op.F, 1, 0, 0))
    ),
    "a micro-batch that does not exist": lambda plan: at(
        plan, Server(0, 0), lambda each: each.append(Instruction(Op.F, 0, 999999, 999999))
    ),
    "another stage's instruction": lambda plan: at(
        plan, Server(0, 1), lambda each: each.append(Instruction(Op.F, 3, 0, 0))
    ),
    "a send before its result": lambda plan: at(plan, Server(0, 0), exchange),
    "a transfer to nobody": lambda plan: at(
        plan, Server(0, 0), lambda each: each.insert(0, Instruction(Op.SEND_F, 0, 0, 0, Server(9, 999)))
    ),
    "a program of a dead server": lambda plan: msgspec.structs.replace(
        plan, programs={**plan.programs, Server(1, 2): plan.programs[Server(0, 2)]}
    ),
    "a live server without a program": lambda plan: msgspec.structs.replace(
        plan, programs={server: program for server, program in plan.programs.items() if server != Server(0, 0)}
    ),
    "a stage that is all dead": lambda plan: msgspec.structs.replace(
        plan,
        dead=plan.job.dead_servers(Server(pipeline, 2) for pipeline in range(3)),
        programs={server: program for server, program in plan.programs.items() if server.stage != 2},
    ),
    "no programs at all": lambda plan: msgspec.structs.replace(plan, programs={}),
    "too little memory": lambda plan: msgspec.structs.replace(
        plan,
        job=msgspec.structs.replace(
            plan.job, stages=tuple(msgspec.structs.replace(stage, limit=1) for stage in plan.job.stages)
        ),
    ),
    "a wrong period": lambda plan: msgspec.structs.replace(plan, period=plan.period - 1),
    "a role of another stage": lambda plan: msgspec.structs.replace(plan, roles={Server(0, 0): Server(1, 1)}),
}


@pytest.fixture(scope="module")
def plan():
    return paper_plan()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("grouping", ["stage", "pipeline"])
def test_it_is_drawn_in_every_view_with_the_message_at_the_head(plan, name, grouping):
    subject = subject_of(WRONG[name](plan), "wrong")
    assert subject.violations
    drawn = all_views(subject, grouping)
    first = subject.violations[0].message
    assert first in " ".join(drawn["terminal 80 none"].split())
    for view in ("svg", "html"):
        assert first.replace("'", "&#x27;").replace(">", "&gt;") in drawn[view] or first in drawn[view]


def test_the_wrong_instruction_is_marked(plan):
    subject = subject_of(WRONG["an instruction twice"](plan), "wrong")
    wrong = [each for each in subject.violations if each.index is not None]
    drawn = all_views(subject)
    assert drawn["svg"].count("; WRONG: ") == len(wrong)
    assert drawn["list"].count("WRONG") == len(wrong)
    assert '"wrong":{"' in drawn["html"]
    assert any("!" in line for line in drawn["terminal 80 none"].splitlines() if line.startswith("W0_1"))


def test_a_wrong_transfer_is_marked_at_the_compute_it_belongs_to(plan):
    subject = subject_of(WRONG["a send before its result"](plan), "wrong")
    assert all_views(subject)["svg"].count("; WRONG: ") == 1


def test_an_order_that_deadlocks_has_no_time_line_and_is_listed(plan):
    stuck = plan
    for server in (Server(0, 2), Server(0, 3)):
        stuck = at(stuck, server, lambda program: program.sort(key=lambda each: each.op is Op.F))
    subject = subject_of(stuck, "stuck")
    assert subject.timeline is None
    assert sum(map(len, stuck.programs.values())) == len(list(listing(subject)))


@settings(max_examples=40)
@given(scheduled(), st.data())
def test_any_plan_is_drawn_with_or_without_a_random_fault(made, data):
    problem, programs = made
    plan = plan_of(problem.job, problem.dead, problem.mode, programs)
    all_views(subject_of(plan, "legal"))
    server = data.draw(st.sampled_from(sorted(plan.programs)))
    program = list(plan.programs[server])
    if program:
        here = data.draw(st.integers(0, len(program) - 1))
        there = data.draw(st.integers(0, len(program) - 1))
        program[here] = program[there]
    broken = msgspec.structs.replace(plan, programs={**plan.programs, server: tuple(program)})
    subject = subject_of(broken, "broken")
    if subject.timeline is not None:
        all_views(subject)


def test_what_is_wrong_is_drawn_beside_a_pipeline_that_is_given_up():
    job = placed_job("consecutive:2")
    gone = PlacedServer((), 4)
    layout = (PlacedPipeline(0, (gone, gone)), PlacedPipeline(8, own_layout(job)[1].servers))
    made = make_plan(with_layout(job, layout), [Server(0, 0)], Mode(), QUICK)
    assert not subject_of(made, "legal").violations
    for server, wrong in (("W1_0", Instruction(Op.F, 0, 0, 0)), ("W0_1", Instruction(Op.F, 0, 1, 0))):
        broken = at(made, Server.parse(server), lambda each, wrong=wrong: each.insert(0, wrong))
        subject = subject_of(broken, "wrong")
        assert [str(each.server) for each in subject.violations] == [server]
        all_views(subject)


def test_names_that_would_steer_a_terminal_or_break_a_picture_are_shown_as_signs(plan):
    name = "a\x1b[31m\x00\nb"
    named = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, name=name, time_unit=name))
    for text in all_views(subject_of(named, "named")).values():
        assert "\x1b" not in text
        assert "\x00" not in text
