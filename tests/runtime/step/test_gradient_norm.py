import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.step.gradient_norm import CALM, Speculation, factor_of
from recycle.runtime.step.gradient_sums import square


def history(factors):
    """The policy's state before each iteration and after the last."""
    states = [Speculation()]
    for factor in factors:
        states.append(states[-1].after(factor, states[-1].guesses))
    return states


def test_the_factor_limits_the_norm_and_is_none_where_the_gradient_is_not_finite():
    assert factor_of(3.0, None) == factor_of(3.0, 3.1) == factor_of(0.0, 1.0) == factor_of(3.0, math.inf) == 1.0
    assert factor_of(4.0, 1.0) == 1 / 4.000001
    assert factor_of(math.inf, 1.0) == factor_of(math.nan, None) == factor_of(math.inf, math.inf) == 0.0


def test_a_run_that_never_clips_never_waits():
    last = history([1.0] * 50)[-1]
    assert (last.right, last.wrong, last.waits, last.hit_rate) == (50, 0, 0, 1.0)


def test_a_run_that_always_clips_guesses_wrong_once():
    last = history([0.5] * 50)[-1]
    assert (last.right, last.wrong, last.waits, last.hit_rate) == (0, 1, 49, 0.0)
    assert Speculation().hit_rate is None


def test_after_a_wrong_guess_it_waits_until_all_has_been_calm_for_a_while():
    states = history([1.0, 0.0] + [1.0] * (2 * CALM))
    assert [each.guesses for each in states] == [True, True] + [False] * CALM + [True] * (CALM + 1)


def test_a_new_view_begins_with_what_all_know_of_the_last_iteration():
    clipped = history([1.0, 0.5])[-1]
    assert clipped.anew(1.0) == Speculation(right=1, wrong=1)
    assert not clipped.anew(0.5).guesses
    assert str(clipped) == "guessed the norm in 2 iterations, 50.0% of them rightly, and waited for it in 0"


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), max_size=80))
def test_wrong_guesses_are_never_close_together_and_nothing_goes_uncounted(factors):
    states = history(factors)
    wrong = [step for step, (before, after) in enumerate(itertools.pairwise(states)) if after.wrong > before.wrong]
    assert all(later - earlier > CALM for earlier, later in itertools.pairwise(wrong))
    last = states[-1]
    assert last.right + last.wrong + last.waits == len(factors)
    assert len(wrong) == last.wrong


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32, torch.float64])
def test_a_gradient_is_the_same_after_its_square_was_taken(precision):
    gradient = torch.tensor([3.0, -4.0], dtype=precision)
    assert square([gradient]) == 25.0
    assert gradient.tolist() == [3.0, -4.0]
