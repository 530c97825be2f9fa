import re

import pytest

from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import ControlError


def test_the_defaults_are_in_order() -> None:
    assert Durations().silence == 3.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beat": 1.0}, "silence is 3 s and must not be under four beats of 1 s, 4 s.*raise silence to at least 4 s"),
        ({"silence": 31.0}, "answer is 30 s and must not be under silence, 31 s.*raise answer to at least 31 s"),
        ({"hang": 1.0}, "hang is 1 s and must not be under four beats of 0.5 s, 2 s"),
        ({"hang": 31.0}, "answer is 30 s and must not be under hang, 31 s"),
        ({"rebuild": 31.0}, "answer is 30 s and must not be under rebuild, 31 s"),
        ({"answer": 200.0}, "transfer is 120 s and must not be under answer, 200 s"),
        ({"beat": 0.0}, "beat is 0 s: give a time above 0"),
        ({"rebuild": -1.0}, "rebuild is -1 s"),
        ({"transfer": float("inf")}, "transfer is inf s"),
        ({"silence": float("nan")}, "silence is nan s"),
    ],
)
def test_a_wrong_order_names_both_values_and_the_remedy(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ControlError, match=message) as caught:
        Durations(**changed)
    assert not re.search(r"\n", str(caught.value))


def test_equal_is_in_order() -> None:
    Durations(beat=1, silence=4, hang=4, rebuild=4, answer=4, transfer=4)
