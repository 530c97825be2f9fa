"""Times and amounts of memory as pictures say them."""

import pytest

from recycle.view.amounts import brief_time, held_text


@pytest.mark.parametrize(
    ("peak", "limit", "unit", "expected"),
    [
        (8800, 9000, "MiB", "8.59/8.79 GiB"),
        (300, None, "MiB", "300 MiB"),
        (0, 900, "B", "0/900 B"),
        (3, 6, "activation", "3/6"),
        (None, 9000, "MiB", ""),
    ],
)
def test_memory_is_said_beside_its_limit_in_one_unit(peak, limit, unit, expected):
    assert held_text(peak, limit, unit) == expected


def test_a_time_has_its_unit_where_it_is_a_length_of_time():
    assert (brief_time(638_000, "us"), brief_time(30, "slot")) == ("638 ms", "30")
