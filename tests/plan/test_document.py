import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import paper_plan
from recycle.errors import PlanFileError, UserError
from recycle.job import Server
from recycle.plan.document import decode_plan, encode_plan, load_plan, save_plan

PLAN = paper_plan()
FIELDS = json.loads(encode_plan(PLAN))


def changed(path, value):
    """The plan file with one field changed; None takes the field away."""
    document = json.loads(encode_plan(PLAN))
    *parents, last = path
    inner = document
    for key in parents:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize("form", ["lowered", "compute"])
def test_a_plan_comes_back_as_it_was(tmp_path, form):
    plan = paper_plan(form=form)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_roles_come_back():
    plan = msgspec.structs.replace(PLAN, roles={Server(0, 2): Server(1, 2)})
    assert decode_plan(encode_plan(plan), "x") == plan


def test_a_file_has_a_line_for_each_server_and_opens_as_json():
    lines = encode_plan(PLAN).decode().splitlines()
    assert sum(line.startswith('    "W') for line in lines) == 11
    assert FIELDS["failed"] == ["W1_2"]
    assert FIELDS["programs"]["W0_0"][:2] == ["0F0.0", "0SEND_F0.0>W0_1"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, r"version 2 .* reads version 1.*\$.version"),
        (["format"], "other", r"'other' file, and a 'recycle plan' file is needed - at `\$.format`"),
        (["format"], None, "this is no recycle plan file.*format"),
        (["period"], None, "period"),
        (["period"], "thirty", r"\$.period"),
        (["period"], -1, r"\$.period"),
        (["mode", "backward"], "both", r"\$.mode.backward"),
        (["mode", "colour"], "blue", r"colour.*\$.mode"),
        (["job", "stages", 2, "forward"], "x", r"\$.job.stages\[2\].forward"),
        (["job", "stages", 2, "forward"], -1, "forward of stage 2 is -1"),
        (["job", "micro_batches"], 0, "micro_batches is 0"),
        (["failed"], ["W9_9"], "server W9_9: .*last server is W2_3"),
        (["failed"], ["nobody"], "server 'nobody'"),
        (["roles"], {"W0_0": "W9_0"}, "server W9_0"),
        (["programs", "W9_9"], [], r"server W9_9.*\$.programs"),
        (["programs", "W00_0"], ["0F9.9"], r"W00_0: .*another program.*\$.programs"),
        (["programs", "W0_0", 3], "0F0", r"\$.programs.W0_0\[3\]: instruction '0F0'"),
        (["programs", "W0_0", 3], 7, r"Expected `str`.*\$.programs"),
        (["provenance", "status"], "sure", r"\$.provenance.status"),
    ],
)
def test_a_wrong_field_is_named(path, value, message):
    with pytest.raises(PlanFileError, match=message) as caught:
        decode_plan(changed(path, value), "bad.json")
    assert str(caught.value).startswith("bad.json: ")
    assert "\n" not in str(caught.value)


@given(st.integers(0, len(encode_plan(PLAN)) - 3))
@settings(max_examples=100)
def test_a_file_cut_short_is_an_error_wherever_it_is_cut(length):
    with pytest.raises(PlanFileError):
        decode_plan(encode_plan(PLAN)[:length], "cut.json")


@given(st.binary(max_size=300))
def test_other_bytes_are_an_error(content):
    with pytest.raises(PlanFileError):
        decode_plan(content, "noise")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(UserError, match="cannot be written"):
        save_plan(PLAN, target)
    with pytest.raises(UserError, match=r"none/plan.json: cannot be written"):
        save_plan(PLAN, tmp_path / "none" / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none.json: cannot be read"):
        load_plan(tmp_path / "none.json")
