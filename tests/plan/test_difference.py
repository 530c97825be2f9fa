import msgspec

from harness.examples import paper_plan
from recycle.job import Server
from recycle.plan.difference import compare_plans


def test_a_plan_does_not_differ_from_itself():
    assert not compare_plans(paper_plan(), paper_plan())


def test_fields_and_programs_that_differ_are_shown():
    first = paper_plan(form="compute")
    program = first.programs[Server(0, 0)]
    stages = (msgspec.structs.replace(first.job.stages[0], forward=2), *first.job.stages[1:])
    second = msgspec.structs.replace(
        first,
        period=31,
        job=msgspec.structs.replace(first.job, stages=stages),
        programs={**first.programs, Server(0, 0): (program[1], program[0], *program[2:])},
    )
    difference = compare_plans(first, second)
    assert difference.fields == (("job.stages[0].forward", 1, 2), ("period", 30, 31))
    assert list(difference.programs) == [Server(0, 0)]
    lines = difference.programs[Server(0, 0)]
    assert sum(line.startswith("-") for line in lines) == sum(line.startswith("+") for line in lines) == 1


def test_a_server_of_one_plan_only_has_an_empty_program_in_the_other():
    difference = compare_plans(paper_plan(), paper_plan(failed=()))
    assert all(line.startswith(("@@", "+")) for line in difference.programs[Server(1, 2)])
    assert ("failed", ["W1_2"], []) in difference.fields
