"""Which signal Megatron takes for the end, read from its options."""

import signal

import pytest

from recycle.errors import UserError
from recycle.megatron.flag.command.exit_signal import UNUSABLE, exit_signal


@pytest.mark.parametrize("number", sorted(signal.Signals), ids=lambda number: number.name)
def test_every_signal_is_taken_or_refused(number):
    words = ["--lr", "1", "--exit-signal-handler", "--exit-signal", number.name]
    if number in UNUSABLE:
        with pytest.raises(UserError, match=f"--exit-signal {number.name}: .*; give SIGTERM or SIGUSR2"):
            exit_signal(words)
    else:
        assert exit_signal(words) == number


@pytest.mark.parametrize("number", set(signal.Signals) - set(UNUSABLE), ids=lambda number: number.name)
def test_a_signal_that_is_not_refused_can_be_taken(number):
    signal.signal(number, signal.signal(number, lambda *_: None))


def test_without_the_switch_megatron_takes_none():
    assert exit_signal(["--exit-signal", "SIGUSR2"]) == signal.SIGTERM
    assert exit_signal(["--exit-signal-handler"]) == signal.SIGTERM


@pytest.mark.parametrize("words", [["--exit-signal", "USR2"], ["--exit-signal"]])
def test_what_is_no_signal_is_refused(words):
    with pytest.raises(UserError, match="--exit-signal"):
        exit_signal(["--exit-signal-handler", *words])
