"""Training goes on from memory with the settings that it had, and is refused with others."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.megatron.flag.start.same_command import MAY_CHANGE, MUST_NOT, SETTINGS, require_same, write_settings
from recycle.runtime.errors import RunError

VALUES = st.lists(st.from_regex(r"\A-?[0-9a-z]{1,3}\Z"), max_size=2)
FIXED = st.sampled_from(["--hidden-size", "--bf16", "--data-path", "--lr", *MUST_NOT])
FREE = st.sampled_from([*MAY_CHANGE, "--save-interval", "--recycle-resume", "--recycle-budget"])
FIXED_OPTIONS, FREE_OPTIONS = st.dictionaries(FIXED, VALUES), st.dictionaries(FREE, VALUES)


def words_of(options):
    return [word for name, values in options.items() for word in (name, *values)]


@given(fixed=FIXED_OPTIONS, before=FREE_OPTIONS, now=FREE_OPTIONS)
def test_what_says_nothing_about_the_state_may_change(tmp_path_factory, fixed, before, now):
    folder = tmp_path_factory.mktemp("memory")
    write_settings(folder, words_of(fixed | before))
    require_same(folder, words_of(now | fixed))


@given(before=FIXED_OPTIONS, now=FIXED_OPTIONS)
def test_what_else_differs_is_named_with_both_values(tmp_path_factory, before, now):
    folder = tmp_path_factory.mktemp("memory")
    write_settings(folder, words_of(before))
    if not before or before == now:
        require_same(folder, words_of(now))
        return
    with pytest.raises(RunError) as caught:
        require_same(folder, words_of(now))
    found = re.search(r"a start (\w+) (--\S+)(.*), and this one is (\w+) (--\S+)(.*): give the same", str(caught.value))
    was, name, values, other, same_name, other_values = found.groups()
    assert name == same_name
    assert before.get(name) != now.get(name)
    for options, word, text in ((before, was, values), (now, other, other_values)):
        assert word == ("with" if name in options else "without")
        assert text.split() == options.get(name, [])


def test_a_value_after_an_equals_sign_is_another_way_to_give_it(tmp_path):
    write_settings(tmp_path, ["--lr", "3"])
    require_same(tmp_path, ["--lr=3"])


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"--lr": 3}'])
def test_where_nothing_says_what_the_settings_were_nothing_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / SETTINGS).write_bytes(content)
    require_same(tmp_path, ["--lr", "3"])
