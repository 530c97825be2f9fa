"""Gloo's tags: the same at both ends, and never shared by transfers that may be in flight at once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.ranks import results_of
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.net.connect import connect
from recycle.runtime.net.gloo.tags import CHECKS, DIRECTIONS, EPOCHS, GREETINGS, ORDERS, tag_of
from recycle.runtime.net.transfer_key import STATE, TOKENS, Carried, TransferKey

SERVERS = (Server(0, 0), Server(0, 1))
GREATEST = 2**31 - 1
numbers = st.integers(0, 200)
keys = st.one_of(
    st.sampled_from([TOKENS, STATE]),
    st.builds(TransferKey, st.sampled_from([Carried.OUTPUT, Carried.GRADIENT]), numbers, numbers),
)
epochs, orders = st.integers(0, 10**6), st.integers(0, 10**12)


@given(epochs, st.booleans(), orders, st.integers(1, ORDERS - 1), keys, keys)
def test_transfers_that_may_be_in_flight_at_once_share_no_tag(epoch, upwards, order, distance, key, other):
    mine = tag_of(epoch, upwards, order, key)
    assert mine != tag_of(epoch, upwards, order + distance, other)
    assert mine != tag_of(epoch, not upwards, order, other)
    assert mine != tag_of(epoch, not upwards, order + distance, other)


@given(epochs, st.integers(1, EPOCHS - 1), st.booleans(), st.booleans(), orders, orders, keys, keys)
def test_epochs_close_to_each_other_share_no_tag(
    epoch, distance, upwards, other_upwards, order, other_order, key, other
):
    assert tag_of(epoch, upwards, order, key) != tag_of(epoch + distance, other_upwards, other_order, other)


@given(epochs, st.booleans(), orders, keys)
def test_every_tag_is_one_that_gloo_has(epoch, upwards, order, key):
    assert 0 <= tag_of(epoch, upwards, order, key) <= GREATEST


def test_greetings_have_tags_that_no_transfer_has():
    keys_of_all_checks = (TransferKey(1, 0, number) for number in range(CHECKS))
    greatest = max(tag_of(EPOCHS - 1, True, ORDERS - 1, key) for key in keys_of_all_checks)
    assert greatest == EPOCHS * DIRECTIONS * ORDERS * CHECKS - 1
    assert greatest < min(GREETINGS) < max(GREETINGS) <= GREATEST


@given(numbers, numbers, st.sampled_from([Carried.OUTPUT, Carried.GRADIENT]))
def test_ends_that_confuse_neighbours_do_not_meet(home, number, carried):
    def tag(*key):
        return tag_of(0, True, 0, TransferKey(*key))

    others = [(1 - carried, home, number), (carried, home + 1, number), (carried, home, number + 1)]
    assert tag(carried, home, number) not in [tag(*each) for each in others]


def test_gloo_takes_the_greatest_tag_and_tells_both_directions_apart():
    """Over a link whose counts are about to begin again, both ways at once."""

    def body(member):
        network = connect(member.store(), View.among(SERVERS, EPOCHS - 1), SERVERS[member.rank])
        link = network.link(SERVERS[1 - member.rank])
        link._sent, link._received = (iter(range(ORDERS - 3, ORDERS + 3)) for _ in range(2))
        sent = [torch.tensor([10 * member.rank + number]) for number in range(6)]
        received = [torch.zeros(1, dtype=torch.int64) for _ in range(6)]
        under_way = [link.receive(each, TransferKey(0, 0, place)) for place, each in enumerate(received)]
        under_way += [link.send(each, TransferKey(0, 0, place)) for place, each in enumerate(sent)]
        for each in under_way:
            each.wait()
        return [int(each) for each in received]

    assert results_of(2, body) == {0: [10, 11, 12, 13, 14, 15], 1: [0, 1, 2, 3, 4, 5]}
