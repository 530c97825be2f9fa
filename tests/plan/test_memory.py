import msgspec
import pytest

from harness.examples import paper_job, paper_plan
from recycle.job import Job, Server, Stage
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import first_excess, memory_changes, peak_memory, walk_memory

STAGE = Stage(1, 1, 1, 0, 0, held=5, released_at_input_gradient=2, limit=9)
JOB = Job(1, 1, (STAGE,), ())
FIRST = Server(0, 0)


def steps(ops):
    return [(0, op) for op in ops]


def program(text):
    return [Instruction.parse(row) for row in text.split()]


def test_memory_is_freed_in_the_parts_that_the_stage_says():
    changes = memory_changes(STAGE)
    assert [changes[op] for op in (Op.F, Op.I, Op.W, Op.B)] == [(5, 0), (0, 2), (0, 3), (0, 5)]
    assert {changes[op] for op in Op if not op.is_compute} == {(0, 0)}


def test_what_an_input_gradient_takes_is_held_until_the_weight_gradient_ends():
    stage = msgspec.structs.replace(STAGE, taken_at_input_gradient=4)
    changes = memory_changes(stage)
    assert [changes[op] for op in (Op.F, Op.I, Op.W, Op.B)] == [(5, 0), (4, 2), (0, 7), (4, 9)]
    walk = walk_memory(Job(1, 1, (stage,), ()), FIRST, steps((Op.F, Op.I, Op.W, Op.F, Op.B)))
    assert list(walk) == [(5, 5), (9, 7), (7, 0), (5, 5), (9, 0)]


def test_a_walk_says_what_is_held_during_and_after_each_op():
    ops = (Op.RECV_F, Op.F, Op.SEND_F, Op.I, Op.F, Op.W, Op.B, Op.STEP)
    levels = [(0, 0), (5, 5), (5, 5), (5, 3), (8, 8), (8, 5), (5, 0), (0, 0)]
    assert list(walk_memory(JOB, FIRST, steps(ops))) == levels


def test_the_chunks_of_a_server_share_its_memory():
    small = Stage(1, 1, 1, 0, 0, held=2, released_at_input_gradient=0, limit=9)
    job = Job(1, 1, (STAGE, small), (0,), placement=((0, 1),))
    walk = [(0, Op.F), (1, Op.F), (1, Op.F), (0, Op.I), (1, Op.W)]
    assert list(walk_memory(job, FIRST, walk)) == [(5, 5), (7, 7), (9, 9), (9, 7), (7, 5)]
    assert first_excess(job, FIRST, [*walk, (0, Op.F)]) == (5, 10)


def test_the_first_place_over_the_limit_is_found():
    assert first_excess(JOB, FIRST, steps((Op.F, Op.I, Op.F, Op.F))) == (3, 13)
    assert first_excess(JOB, FIRST, steps((Op.F, Op.B, Op.F, Op.F))) == (3, 10)
    assert first_excess(JOB, FIRST, steps((Op.F, Op.B) * 5)) is None


@pytest.mark.parametrize(("released", "peak"), [(0, 3), (1, 2)])
def test_the_peak_depends_on_what_the_input_gradient_frees(released, peak):
    rows = program("0F0.0 0F0.1 0I0.0 0F0.2 0W0.0 0I0.1 0W0.1 0I0.2 0W0.2")
    assert peak_memory(paper_job(released=released), FIRST, rows) == peak


def test_a_server_without_work_holds_nothing():
    assert peak_memory(paper_job(), FIRST, ()) == 0


def test_transfers_hold_nothing():
    compute, lowered = paper_plan(form="compute"), paper_plan()
    for server, rows in compute.programs.items():
        assert peak_memory(compute.job, server, rows) == peak_memory(lowered.job, server, lowered.programs[server])
