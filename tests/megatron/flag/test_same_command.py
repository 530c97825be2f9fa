"""Training goes on from memory, and ranks train together, with the same settings, and are refused with others."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.megatron.flag.start.same_command import (
    AT_START,
    MAY_CHANGE,
    MAY_DIFFER,
    MUST_NOT,
    SETTINGS,
    require_same,
    require_same_in_run,
    write_settings,
)
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.rendezvous import NotAdmitted
from recycle.runtime.launch.meet.start import Start

VALUES = st.lists(st.from_regex(r"\A(-?[1-9][0-9]?|-?[a-z][0-9a-z]{0,2})\Z"), max_size=2)
FIXED = st.sampled_from(["--hidden-size", "--bf16", "--data-path", "--lr", *MUST_NOT])
FREE = st.sampled_from([*MAY_CHANGE, "--save-interval", "--recycle-resume", "--recycle-budget"])
FIXED_OPTIONS, FREE_OPTIONS = st.dictionaries(FIXED, VALUES), st.dictionaries(FREE, VALUES)


def words_of(options):
    return [word for name, values in options.items() for word in (name, *values)]


@given(fixed=FIXED_OPTIONS, before=FREE_OPTIONS, now=FREE_OPTIONS)
def test_what_says_nothing_about_the_state_may_change(tmp_path_factory, fixed, before, now):
    folder = tmp_path_factory.mktemp("memory")
    write_settings(folder, words_of(fixed | before), 4)
    require_same(folder, words_of(now | fixed), 4)


@given(before=FIXED_OPTIONS, now=FIXED_OPTIONS)
def test_what_else_differs_is_named_with_both_values(tmp_path_factory, before, now):
    folder = tmp_path_factory.mktemp("memory")
    write_settings(folder, words_of(before), 4)
    if before == now:
        require_same(folder, words_of(now), 4)
        return
    with pytest.raises(RunError) as caught:
        require_same(folder, words_of(now), 4)
    found = re.search(r"a start (\w+) (--\S+)(.*), and this one is (\w+) (--\S+)(.*): give the same", str(caught.value))
    was, name, values, other, same_name, other_values = found.groups()
    assert name == same_name
    assert before.get(name) != now.get(name)
    for options, word, text in ((before, was, values), (now, other, other_values)):
        assert word == ("with" if name in options else "without")
        assert text.split() == options.get(name, [])


@pytest.mark.parametrize("now", [2, 6, 8])
def test_another_number_of_ranks_is_refused(tmp_path, now):
    write_settings(tmp_path, ["--lr", "3"], 4)
    require_same(tmp_path, ["--lr", "3"], 4)
    text = f"the state in memory is of a start with WORLD_SIZE 4, and this one is with WORLD_SIZE {now}: give the same"
    with pytest.raises(RunError, match=text):
        require_same(tmp_path, ["--lr", "3"], now)


def test_a_value_after_an_equals_sign_is_another_way_to_give_it(tmp_path):
    write_settings(tmp_path, ["--lr", "3"], 4)
    require_same(tmp_path, ["--lr=3"], 4)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--lr 1e-2", "--lr 0.01"),
        ("--lr=.01", "--lr 1E-2"),
        ("--seed 7", "--seed 1 --seed 7"),
        ("--split 1 0.0", "--split 1.0 0"),
    ],
)
def test_a_value_may_be_written_in_another_way(tmp_path, before, now):
    write_settings(tmp_path, before.split(), 4)
    require_same(tmp_path, now.split(), 4)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--seed 9007199254740993", "--seed 9007199254740992"),
        ("--lr 0.01", "--lr 0.011"),
        ("--lr 1", "--lr 1 1"),
        ("--data-path text", "--data-path Text"),
    ],
)
def test_another_value_is_refused_however_near_it_is(tmp_path, before, now):
    write_settings(tmp_path, before.split(), 4)
    with pytest.raises(RunError, match="give the same"):
        require_same(tmp_path, now.split(), 4)


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"--lr": 3}'])
def test_where_nothing_says_what_the_settings_were_nothing_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / SETTINGS).write_bytes(content)
    require_same(tmp_path, ["--lr", "3"], 4)


OF_RANKS = ["--clip-grad", "--train-iters", "--eval-interval", "--log-interval", "--save", *AT_START, *MUST_NOT]
PER_RANK = st.dictionaries(st.sampled_from([*MAY_DIFFER, "--recycle-restarts"]), VALUES)
COMMON = st.dictionaries(st.sampled_from(OF_RANKS), VALUES)


def compare(run, rank, *, returns):
    """The options of the first rank, and those of another one."""
    said = []
    meetings = [
        SimpleNamespace(
            start=Start(each, 2, "", "host0", 5),
            agree=lambda _, content: said.append(content) or said[0],
            is_over=lambda: returns,
        )
        for each in (0, 1)
    ]
    require_same_in_run(meetings[0], words_of(run), None)
    require_same_in_run(meetings[1], words_of(rank), None)


@given(common=COMMON, run=PER_RANK, rank=PER_RANK, returns=st.booleans())
def test_ranks_may_differ_in_what_is_not_trained(common, run, rank, returns):
    compare(common | run, rank | common, returns=returns)


@given(run=COMMON, rank=COMMON, returns=st.booleans())
def test_a_rank_with_other_options_is_refused_in_a_line_that_names_one_and_both_values(run, rank, returns):
    heeded = {name for name in OF_RANKS if not (returns and name in AT_START)}
    differing = {name for name in heeded if run.get(name) != rank.get(name)}
    if not differing:
        compare(run, rank, returns=returns)
        return
    with pytest.raises(NotAdmitted if returns else RunError, match="process") as caught:
        compare(run, rank, returns=returns)
    # A process that says it at the start is heard by all others.
    assert isinstance(caught.value, NotAdmitted) == returns
    name = min(differing)
    texts = [" ".join(["with", name, *each[name]]) if name in each else f"without {name}" for each in (rank, run)]
    pattern = (
        "comes back {}, and the run was started {}: it goes" if returns else "started {}, and process 0, .*, {}: start"
    )
    assert re.search(pattern.format(*map(re.escape, texts)), str(caught.value))
