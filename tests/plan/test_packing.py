import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job, paper_plan
from recycle.errors import PlanFileError
from recycle.job import Server
from recycle.plan.packing import decode_references, encode_references, make_references, pack_plan

PLAN = paper_plan()
REFERENCES = make_references([paper_plan(failed=())])


@pytest.mark.parametrize("references", [{}, REFERENCES, make_references([PLAN] * 40)])
def test_a_plan_is_unpacked_as_it_was(references):
    packed = pack_plan(PLAN, references)
    head = packed.plan("there")
    programs = {server: packed.program(server, references, "there", 10_000) for server in PLAN.programs}
    assert msgspec.structs.replace(head, programs=programs) == PLAN


def test_what_the_reference_has_takes_next_to_nothing():
    own = pack_plan(PLAN, make_references([PLAN]))
    alone = pack_plan(PLAN, {})
    assert sum(map(len, own.programs.values())) < sum(map(len, alone.programs.values())) / 5


def test_references_are_decoded_as_they_were():
    assert decode_references(encode_references(REFERENCES), "there") == REFERENCES


def test_a_server_without_a_program_is_said():
    with pytest.raises(PlanFileError, match="there: no readable program for W1_2"):
        pack_plan(PLAN, REFERENCES).program(Server(1, 2), REFERENCES, "there", 10_000)


@given(st.data())
def test_a_damaged_program_is_refused(data):
    packed = pack_plan(PLAN, REFERENCES)
    server = data.draw(st.sampled_from(sorted(PLAN.programs)))
    content = bytearray(packed.programs[str(server)])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    broken = msgspec.structs.replace(packed, programs={str(server): bytes(content)})
    with pytest.raises(PlanFileError, match="there: no readable program for"):
        broken.program(server, REFERENCES, "there", 10_000)


def test_another_reference_than_the_one_it_was_packed_with_is_refused():
    packed = pack_plan(PLAN, REFERENCES)
    other = make_references([paper_plan(failed=(), micro_batches=5)])
    with pytest.raises(PlanFileError):
        packed.program(Server(0, 0), other, "there", 10_000)
    with pytest.raises(PlanFileError, match="there: the references are damaged"):
        decode_references(b"nothing", "there")


def test_the_job_is_in_the_head():
    assert pack_plan(PLAN, {}).plan("there").job == paper_job()
