import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.wording import (
    BYTES,
    MICROSECONDS,
    known_unit,
    memory_text,
    seconds_text,
    throughput_text,
    time_text,
    units,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (694_000, "us", "694 ms"),
        (694_123, "us", "694.1 ms"),
        (1_500_000, "us", "1.5 s"),
        (999, "us", "999 us"),
        (0.5, "us", "500 ns"),
        (0, "us", "0 s"),
        (-2000, "us", "-2 ms"),
        (90, "s", "90 s"),
        (2, "second", "2 s"),
        (30, "slot", "30 slots"),
        (1, "slot", "1 slot"),
        (2.5, "slot\x1b", "2.5 slot\ufffds"),
    ],
)
def test_times(value, unit, text):
    assert time_text(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (9000, "MiB", "8.789 GiB"),
        (512, "MiB", "512 MiB"),
        (1e9, "B", "953.7 MiB"),
        (100, "B", "100 bytes"),
        (6, "activation", "6 activations"),
    ],
)
def test_memory(value, unit, text):
    assert memory_text(value, unit) == text


@given(st.integers(1, 10**12), st.sampled_from(sorted(MICROSECONDS)))
def test_a_time_read_back_is_what_it_was_to_four_digits(value, unit):
    number, name = time_text(value, unit).split()
    read = float(number.replace(",", "")) * MICROSECONDS[name]
    assert read == pytest.approx(value * MICROSECONDS[unit], rel=1e-3)


@pytest.mark.parametrize("known", [MICROSECONDS, BYTES])
def test_a_unit_is_known_in_the_plural_and_in_capitals_or_refused(known):
    for name in known:
        for written in (name, f" {name}") + ((f"{name}s", name.title(), f"{name.upper()}S") if len(name) > 3 else ()):
            assert known[known_unit(written, known)] == known[name]
        if len(name) > 4:
            with pytest.raises(ValueError, match=name):
                known_unit(name[:2] + name[3:], known)
    for other in ("slot", "activation", "tick", "step", "x"):
        assert known_unit(other, known) == other


def test_symbols_have_no_plural():
    assert [units(each) for each in ("us", "GiB", "ms", "slot", "minute")] == ["us", "GiB", "ms", "slots", "minutes"]


def test_a_throughput_says_against_what():
    assert throughput_text(0.8, "1F1B") == "planned throughput 80% of 1F1B"
    assert throughput_text(0.8, "1F1B", 1.25) == "planned throughput 64% of before (80% of 1F1B)"
    assert throughput_text(1.25, "1F1B", 1.25, "the start") == "planned throughput 100% of the start (125% of 1F1B)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4213, "0.42 s"), (9.96, "10 s"), (59.4, "59 s"), (59.8, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_lengths_of_time_that_people_wait(seconds, text):
    assert seconds_text(seconds) == text
