"""Exact sums against whole-number arithmetic, in every order and over any number of servers."""

import math
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from recycle.runtime.step.exact_sums import CHUNK, HEADROOM, NOTHING, SMALLEST, ExactSums, quantum

WIDTH = 3
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
similar = st.integers(-(2**24) + 1, 2**24 - 1).map(lambda each: each * 2.0**-30)
addends = st.lists(st.lists(st.one_of(similar, singles), min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=9)


def bound_of(rows):
    return math.frexp(max(abs(each) for row in rows for each in row) or 1.0)[1]


def collect(rows, bound, most):
    gradient = torch.zeros(WIDTH)
    sums = ExactSums([gradient], most)
    sums.start([bound])
    for row in rows:
        gradient += torch.tensor(row)
        sums.collect()
        assert not gradient.any()
    return sums


def sum_over(server, others):
    """Takes the place of a group of processes, so that the order in which they are added can be chosen."""
    totals, greatest = server.part(slice(None))
    for other in others:
        more, at_most = other.part(slice(None))
        totals += more
        torch.maximum(greatest, at_most, out=greatest)


def mean(servers, divisor=1):
    first, *others = servers
    sum_over(first, others)
    result = torch.empty(WIDTH)
    first.mean(divisor, [result], slice(None))
    return result


def expected(rows, grain, divisor):
    """By whole numbers: each addend in quanta, half to even."""
    totals = [sum(round(Fraction(row[place]) / Fraction(2) ** grain) for row in rows) for place in range(WIDTH)]
    with numpy.errstate(over="ignore"):
        return [float(numpy.float32(float(Fraction(each, divisor) * Fraction(2) ** grain))) for each in totals]


@given(addends, st.integers(0, 40), st.integers(1, 12), st.randoms(use_true_random=False))
@example([[-0.5, -1.5, 1.5], [2.5, -0.25, -0.75]], 49, 3, None)  # the quantum is 1
@example([[2.0**-149, -(2.0**-140), 0.0], [2.0**-149, 2.0**-149, -0.0]], 0, 1, None)
def test_a_sum_is_that_of_whole_numbers_in_any_order_and_partition(rows, slack, divisor, random):
    bound = bound_of(rows) + slack
    grain = quantum(bound, max(2, (len(rows) - 1).bit_length()))
    right = expected(rows, grain, divisor)
    assert mean([collect(rows, bound, len(rows))], divisor).tolist() == right
    if random is not None:
        rows = random.sample(rows, len(rows))
        cut = random.randrange(len(rows) + 1)
        parts = [collect(rows[:cut], bound, len(rows)), collect(rows[cut:], bound, len(rows))]
        random.shuffle(parts)
        assert mean(parts, divisor).tolist() == right


@given(st.lists(similar, min_size=2, max_size=30), st.randoms(use_true_random=False))
def test_ties_do_not_depend_on_what_was_added_before(values, random):
    # With a bound so high, nearly every addend lies between two multiples, and many just in the middle.
    rows = [[each, -each, each] for each in values]
    shuffled = random.sample(rows, len(rows))
    assert mean([collect(rows, 20, 32)]).tolist() == mean([collect(shuffled, 20, 32)]).tolist()


@given(st.integers(1, 20), st.integers(1, 5))
def test_as_many_addends_at_their_bound_as_were_announced_are_still_exact(most, bits):
    # The largest sums, of addends whose lowest bit counts: one bit more would be lost.
    bound = 4
    grain = quantum(bound, max(2, (most - 1).bit_length()))
    value = float(numpy.float32(2.0**bound * (1 - 2.0**-24)))
    tiny = bits * 2.0**grain
    rows = [[value, tiny, -value]] * most
    sums = collect(rows, bound, most)
    assert sums.totals.tolist() == [value * most, tiny * most, -value * most]
    assert sums.fits


@given(addends)
def test_an_addend_above_its_bound_is_noticed_on_every_server(rows):
    largest = max(abs(each) for row in rows for each in row)
    if largest == 0:
        return
    mantissa, exponent = math.frexp(largest)
    low = exponent - 1 if mantissa > 0.5 else exponent - 2
    here, there = collect([[0.0] * WIDTH], low, 16), collect(rows, low, 16)
    assert here.fits
    sum_over(here, [there])
    assert not here.fits
    assert here.next_bounds() == [exponent + HEADROOM]


def test_nothing_but_zero_fits_before_anything_is_known():
    gradient = torch.zeros(WIDTH)
    sums = ExactSums([gradient], 4)
    sums.collect()
    assert sums.fits
    assert sums.next_bounds() == [NOTHING]
    gradient[1] = 2.0**SMALLEST
    sums.collect()
    assert not sums.fits
    sums.start(sums.next_bounds())
    gradient[1] = 2.0**SMALLEST
    sums.collect()
    assert sums.fits
    assert mean([sums]).tolist() == [0.0, 2.0**SMALLEST, 0.0]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_noticed_and_leaves_the_bounds(value):
    here, there = collect([[1.0] * WIDTH], 1, 4), collect([[1.0, value, 0.0], [1.0, 1.0, 1.0]], 1, 4)
    sum_over(here, [there])
    assert not here.finite
    assert here.next_bounds() == [1]
    assert not mean([there]).isfinite().all()


def test_gradients_of_many_sizes_have_bounds_of_their_own():
    sizes = [(3,), (CHUNK + 7,), (5, 4), (1,)]
    buffer = torch.zeros(sum(math.prod(each) for each in sizes))
    parts = buffer.split([math.prod(each) for each in sizes])
    gradients = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
    sums = ExactSums(gradients, 2)
    for _ in range(2):
        torch.manual_seed(0)
        values = [torch.randn(size) * 10.0 ** (-3 * place) for place, size in enumerate(sizes)]
        for gradient, value in zip(gradients, values, strict=True):
            gradient += value
        sums.collect()
        found = sums.next_bounds()
        fits = sums.fits
        means = [torch.empty(size) for size in sizes]
        sums.mean(1, means, slice(None))
        sums.start(found)
    assert fits
    assert found == [math.frexp(each.abs().max().item())[1] + HEADROOM for each in values]
    for mine, value in zip(means, values, strict=True):
        # Every single loses at most half a quantum.
        grain = 2.0 ** quantum(math.frexp(value.abs().max().item())[1] + HEADROOM, 2)
        assert (mine.double() - value.double()).abs().max() <= grain / 2 + 2.0**-25 * value.abs().max()


def test_the_sum_of_an_iteration_that_was_begun_again_has_nothing_of_the_first():
    sums = collect([[1.0, 2.0, 3.0]], 2, 4)
    sums.start([2])
    assert mean([sums]).tolist() == [0.0] * WIDTH
    assert sums.next_bounds() == [2]
