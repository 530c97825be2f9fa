"""What a file is: wrong kinds are named, and whatever is no TOML is an error of the user's."""

import pytest

from recycle.errors import UserError
from recycle.kinds import FAULTS, JOB, MODEL, kind_of, read_toml


@pytest.mark.parametrize("wanted", [JOB, FAULTS, MODEL])
@pytest.mark.parametrize("content", [b"key = " + b"9" * 5000, b"key = " + b"[" * 10**5, b"key = \xff", b"key"])
def test_what_is_no_toml_is_refused_in_a_line(content, wanted):
    with pytest.raises(UserError, match=r"^this is no TOML file: [^\n]*$"):
        read_toml(content, wanted)
    assert kind_of(content) is None


@pytest.mark.parametrize("number", [b"9" * 5000, b"0x" + b"f" * 5000, b"[1, {a = 0b1" + b"0" * 1024 + b"}]"])
def test_a_number_that_python_would_not_print_is_refused_with_a_remedy(number):
    with pytest.raises(UserError, match="a number in it has more than 300 digits; write a smaller one"):
        read_toml(b"key = " + number, JOB)


def test_another_kind_is_named_with_where_the_wanted_one_comes_from():
    with pytest.raises(
        UserError, match=r"^this is a fault file, and a job file is needed: docs/reference/job-file\.md has its keys"
    ):
        read_toml(b"[[fault]]\nkind = 'kill'\n", JOB)
    assert read_toml(b"pipelines = 3\n", JOB) == {"pipelines": 3}
