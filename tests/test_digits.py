"""Numbers are in the digits 0 to 9: Python's own reading takes underscores and other alphabets as well."""

import re
from functools import partial
from pathlib import Path

import click
import pytest
from click.types import IntParamType

from recycle.cli.parameters import FAULTS, Saves, Timeouts, Whole
from recycle.cli.verbs import VERBS, group
from recycle.digits import parse_number, parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.faults.node_traces import read_nodes
from recycle.faults.server_trace import read_changes
from recycle.job import Server
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.placement import parse_placement
from recycle.placing.decision import Outlook
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.start import find_start
from recycle.state.redundancy import Redundancy
from recycle.study.answer import Bill
from recycle.study.constants import parse_constant
from recycle.study.registry import parse_policies

SLIPS = ("1_0", "\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT TWO}", "\N{SUPERSCRIPT TWO}", "0x10", "1 0", "")
"""Texts that are no numbers, of which Python takes some."""

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
READERS = {
    "a server": lambda text: Server.parse(f"W{text}_0"),
    "a duration": parse_duration,
    "a timeout": lambda text: Timeouts.parse(f"hang={text}s"),
    "checkpoints": Saves.parse,
    "kept checkpoints": lambda text: Saves.parse(f"1,keep={text}"),
    "copies": lambda text: Redundancy.parse(f"copies={text}"),
    "moves": lambda text: Outlook.parse(f"{text}h/{text}h"),
    "a placement": lambda text: parse_placement(f"interleaved:{text}", 2),
    "a price": lambda text: Bill.parse(8, f"{text}/gpuh"),
    "a share": lambda text: parse_constant(f"bamboo-share={text}"),
    "spares": lambda text: parse_policies(f"spares:{text}"),
    "a time of a trace": lambda text: read_changes(f"{text},remove,W0_0\n".encode()),
    "a count of a trace": lambda text: read_nodes(f"hours,live\n0,{text}\n".encode()),
    "a flag": lambda text: read_command_line(["a.py", "--micro-batch-size", "1", "--recycle-restarts", text], 1),
    **{
        name: lambda text, name=name: find_start(TORCHRUN | {name: text})
        for name in (*TORCHRUN, "GROUP_WORLD_SIZE")
        if name != "MASTER_ADDR"
    },
}


SIGNED = partial(parse_whole, signed=True)


@pytest.mark.parametrize("text", SLIPS)
@pytest.mark.parametrize("parse", [parse_number, parse_whole, SIGNED])
def test_a_slip_is_no_number(parse, text):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [(parse_number, "-1.5e3", -1500.0), (parse_whole, "007", 7), (SIGNED, "-7", -7), (SIGNED, "+7", 7)],
)
def test_a_number_is_read(parse, text, value):
    assert parse(text) == value


def test_a_sign_is_read_where_it_is_asked_for():
    with pytest.raises(ValueError, match="-7"):
        parse_whole("-7")


@pytest.mark.parametrize("verb", VERBS)
def test_every_number_of_a_verb_is_in_these_digits(run, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    command = group.get_command(click.Context(group), verb)
    for option in command.params:
        if not isinstance(option.type, IntParamType):
            continue
        assert isinstance(option.type, Whole), option.name
        for text in ("1_0", "\N{ARABIC-INDIC DIGIT THREE}"):
            status, out, err = run(verb, f"{option.opts[-1]}={text}", "a", "b")
            assert (status, out, err.count("\n")) == (2, "", 1)
            assert f"{text!r}: give a whole number in the digits 0 to 9" in err
    assert not [*Path().iterdir()]


@pytest.mark.parametrize("text", SLIPS[:3])
@pytest.mark.parametrize("reader", READERS)
def test_every_text_with_a_number_in_it_is_in_these_digits(reader, text):
    with pytest.raises((UserError, RunError), match=re.escape(text)):
        READERS[reader](text)


@pytest.mark.parametrize("text", SLIPS[:-1])
def test_a_seed_of_random_faults_is_in_these_digits(text):
    with pytest.raises(click.BadParameter, match=re.escape(text)):
        FAULTS.convert(f"mtbf=30s,seed={text}", None, None)
