from pathlib import Path

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.errors import UserError
from recycle.faults.duration import format_duration, parse_duration
from recycle.faults.errors import FaultError
from recycle.faults.file import decode_faults, load_faults
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from tests.faults.strategies import fault_lists

EXAMPLES = Path(__file__).resolve().parents[2] / "schedules" / "faults"
W1_2 = Server(1, 2)
JOB = paper_job()


@pytest.fixture
def load(tmp_path):
    def call(text, **options):
        path = tmp_path / "faults.toml"
        path.write_text(text)
        return load_faults(path, JOB, 50, **options)

    return call


def fault(**fields):
    return "[[fault]]\n" + "".join(f"{key} = {value}\n" for key, value in fields.items())


KILL = fault(kind='"kill"', server='"W1_2"', iteration=8)


def test_a_file_gives_every_field(load):
    faults = load("""
        [[fault]]
        kind = "kill"
        servers = ["W1_2", "W0_2"]
        iteration = 8
        instruction = "2F1.3"

        [[fault]]
        kind = "slow"
        server = "W1_2"
        iteration = 10
        factor = 4
        duration = "500ms"
        incarnation = 1

        [[fault]]
        kind = "stop"
        server = "W0_0"
        at = "2m"
        duration = 3
    """)
    pattern = InstructionPattern.parse("2F1.3")
    assert faults.entries == (
        Fault(Kind.KILL, (W1_2, Server(0, 2)), step=7, instruction=pattern),
        Fault(Kind.SLOW, (W1_2,), step=9, factor=4.0, duration=0.5, incarnation=1),
        Fault(Kind.STOP, (Server(0, 0),), at=120.0, duration=3.0),
    )


def test_the_examples_load_and_menu_has_every_kind():
    kinds = set()
    for path in sorted(EXAMPLES.iterdir()):
        faults = load_faults(path, JOB, 50)
        kinds |= {each.kind for each in faults.entries}
    assert kinds == set(Kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[fault]]\niteration = 8\n", r"required field `kind` - at `\$\.fault\[0\]`"),
        (KILL + fault(kind='"kil"'), r"Invalid enum value 'kil' - at `\$\.fault\[1\]\.kind`"),
        (KILL + "colour = 1\n", r"unknown key `colour`; .* - at `\$\.fault\[0\]`"),
        (KILL + "[other]\n", "unknown key `other`"),
        (fault(kind='"kill"', server=3, iteration=8), r"got `int` - at `\$\.fault\[0\]\.server`"),
        (fault(kind='"kill"', server='"W1_2"', iteration=-6), r"`int` >= 1 - at `\$\.fault\[0\]\.iteration`"),
        (fault(kind='"kill"', server='"W1-2"', iteration=8), "fault 1: server 'W1-2': a server is written W<pipe"),
        (KILL + 'servers = ["W0_0"]\n', "fault 1: server is 'W1_2' and servers is given too"),
        (KILL + 'instruction = "forward"\n', "fault 1: instruction is 'forward': write how its text starts"),
        (fault(kind='"kill"', server='"W1_2"', at='"12x"'), "fault 1: at: '12x' is no duration: write 500ms"),
        (fault(kind='"kill"', server='"W1_2"', at="nan"), "fault 1: at is nan: give seconds, from 0"),
        (fault(kind='"kill"', server='"W1_2"', at="-1"), "fault 1: at is -1: give seconds, from 0"),
        (KILL + "at = 3\n", "fault 1: iteration is 8 and at is 3s: leave one of them out"),
        (fault(kind='"kill"', server='"W3_0"', iteration=8), "fault 1, kill of W3_0 .*: this job has pipelines 0 to 2"),
        (fault(kind='"kill"', server='"W1_2"', iteration=51), "iteration is 51: the run has iterations 1 to 50"),
        (KILL + 'instruction = "1F1.3"\n', "fault 1, .*: instruction is '1F1.3', of stage 1, and W1_2 has stage 2"),
        (
            KILL + fault(kind='"join"', server='"W1_1"', iteration=10),
            "fault 2, .*: no fault before it ends W1_1.*; add a k",
        ),
        (KILL + fault(kind='"join"', server='"W1_2"', iteration=7), "fault 2, .*: no fault before it ends W1_2"),
        ("fault = 3", r"got `int` - at `\$\.fault`"),
        ("[[fault]", "this is no TOML file"),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_and_field(load, text, message):
    with pytest.raises(FaultError, match=message) as caught:
        load(text)
    assert "faults.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_servers_that_are_dead_from_the_start_can_join_and_cannot_die(load):
    join = fault(kind='"join"', server='"W1_2"', iteration=7)
    assert len(load(join, dead=[W1_2]).entries) == 1
    assert len(load(join + KILL + "incarnation = 1\n", dead=[W1_2]).entries) == 2
    with pytest.raises(FaultError, match="W1_2 is dead from the start, and no join comes before"):
        load(KILL, dead=[W1_2])
    with pytest.raises(FaultError, match="W1_2 is dead from the start, and no join comes before"):
        load(KILL + fault(kind='"join"', server='"W1_2"', iteration=10), dead=[W1_2])


def test_a_replacement_has_an_incarnation_of_its_own(load):
    joined = KILL + fault(kind='"join"', server='"W1_2"', iteration=10)
    again = fault(kind='"exit"', server='"W1_2"', iteration=13)
    assert len(load(joined + again + "incarnation = 1\n").entries) == 3
    with pytest.raises(
        FaultError, match=r"fault 3, .*: incarnation is 0, and W1_2 was replaced before iteration 13; write"
    ):
        load(joined + again)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.toml: cannot be read"):
        load_faults(tmp_path / "none.toml", JOB, 50)
    with pytest.raises(FaultError, match=r"faults\.yaml: its name has to end in \.toml .* or \.csv"):
        load_faults(tmp_path / "faults.yaml", JOB, 50)


def encoded(faults):
    tables = []
    for each in faults.entries:
        table = msgspec.structs.asdict(each) | {"kind": each.kind.value, "servers": [*map(str, each.servers)]}
        table["iteration"] = None if table["step"] is None else table["step"] + 1
        del table["step"]
        if each.instruction is not None:
            table["instruction"] = str(each.instruction)
        tables.append({key: value for key, value in table.items() if value is not None})
    return tomli_w.dumps({"fault": tables}).encode()


@given(fault_lists)
def test_faults_parse_back_from_their_text(faults):
    assert decode_faults(encoded(faults)) == faults


@given(st.integers(0, 10**15).map(lambda nanoseconds: round(nanoseconds / 1e9, 9)))
def test_durations_parse_back_from_their_text(seconds):
    assert parse_duration(format_duration(seconds), "at") == seconds


def refusal(name, content, folder):
    path = folder / name
    path.write_bytes(content)
    try:
        assert isinstance(load_faults(path, JOB, 50), Faults)
    except UserError as error:
        return str(error)
    return f"{path}: good"


LONG = "0x" + "f" * 4000
SIGNS = ["=", '"', "[", "]]", "\n", "\0", "é", ""]
PIECES = [*SIGNS, "-1", "1e400", "nan", LONG, "9" * 5000, "W9_9", "2F", "true"]
EDITS = st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 12), st.sampled_from(PIECES)), max_size=4)


@pytest.mark.parametrize("name", ["menu.toml", "trace.csv"])
@given(edits=EDITS)
def test_a_mutated_file_is_refused_by_an_error_of_the_users(name, edits, tmp_path_factory):
    text = (EXAMPLES / name).read_text()
    for place, length, piece in edits:
        place %= len(text) + 1
        text = text[:place] + piece + text[place + length :]
    folder = tmp_path_factory.getbasetemp()
    message = refusal(name, text.encode(), folder)
    assert message.startswith(f"{folder / name}: ")
    assert "\n" not in message


KEYS = ["server", "servers", "iteration", "at", "instruction", "duration", "factor", "incarnation"]
VALUES = [LONG, "1", "-1", "2.5", "nan", "-inf", '""', '"W1_2"', '"2F1.3"', '"3s"', "[]", '["W1_2"]', "{}", "true"]
FIELDS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@given(kind=st.sampled_from(Kind), fields=FIELDS)
def test_fields_of_any_value_are_refused_by_an_error_of_the_users(kind, fields, tmp_path_factory):
    content = fault(kind=f'"{kind.value}"', **fields).encode()
    assert "\n" not in refusal("fields.toml", content, tmp_path_factory.getbasetemp())
