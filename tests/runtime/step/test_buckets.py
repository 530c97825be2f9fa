"""Buckets begin in one order, whoever is complete first, and none before it is complete."""

from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.step.buckets import Buckets


@given(
    st.integers(0, 5),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(0, 20),
    st.randoms(use_true_random=False),
    st.integers(0, 12),
)
def test_whoever_is_complete_first_buckets_begin_from_the_last_to_the_first(first, sizes, least, choose, told):
    buckets = Buckets(first, sizes, least)
    places = list(range(first, first + len(sizes)))
    covered = [place for part in reversed(buckets.parts) for place in range(part.start, part.stop)]
    assert covered == places, "each parameter is in one bucket"
    numbers = dict(zip(places, sizes, strict=True))
    if least and sum(sizes) >= least:
        assert all(sum(numbers[place] for place in range(each.start, each.stop)) >= least for each in buckets.parts)
    else:
        assert len(buckets.parts) == 1
    for _ in range(2):
        order = choose.sample(places, len(places))
        complete, begun = set(), []
        for place in order[:told]:
            complete.add(place)
            begun += buckets.complete(place)
            ready = [complete.issuperset(range(each.start, each.stop)) for each in buckets.parts]
            assert len(begun) == [*ready, False].index(False), "all begin that can"
        begun += buckets.rest()
        assert begun == list(buckets.parts)
        assert not buckets.rest()
        buckets.begin()


def test_what_is_left_over_goes_with_the_bucket_behind_it():
    assert Buckets(2, [1, 4, 3, 2], 5).parts == [slice(4, 6), slice(2, 4)]
    assert Buckets(2, [1, 1, 3, 2], 5).parts == [slice(2, 6)]
    assert Buckets(0, [], 5).parts == [slice(0, 0)]
