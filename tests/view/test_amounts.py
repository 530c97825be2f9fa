"""Times and amounts of memory as pictures say them."""

import msgspec
import pytest

from recycle.view.amounts import brief_time, held_text
from recycle.view.chart import make_chart
from recycle.view.subject import load_subject
from tests.view.conftest import SCHEDULES


@pytest.fixture
def row():
    subject = load_subject(SCHEDULES / "4-staggered.json", 1)
    return next(make_chart(subject, subject.timeline).rows())


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
def test_memory_is_said_beside_its_limit_in_one_unit(row, peak, limit, unit, expected):
    assert held_text(msgspec.structs.replace(row, peak=peak, limit=limit), unit) == expected


def test_a_time_has_its_unit_where_it_is_a_length_of_time():
    assert (brief_time(638_000, "us"), brief_time(30, "slot")) == ("638 ms", "30")
