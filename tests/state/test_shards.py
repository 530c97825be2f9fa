"""Virtual shards: every element is in one, each has its holders, and deaths that leave one of them lose nothing."""

from collections import Counter
from math import ceil

import hypothesis.strategies as st
from hypothesis import given

from recycle.state.shards import ALIGNMENT, HOLDERS, Piece, assign_shards, cut_layers, find_moves

LAYERS = st.lists(st.lists(st.integers(1, 5 * ALIGNMENT), min_size=1, max_size=5), min_size=1, max_size=4)
COUNTS = st.integers(1, 9)


@st.composite
def peers(draw, count=None):
    """A number of pipelines, and some of them that are alive."""
    count = draw(st.integers(1, 12)) if count is None else count
    return count, draw(st.sets(st.integers(0, count - 1), min_size=1))


@given(LAYERS, COUNTS)
def test_every_element_is_in_one_shard(layers, count):
    shards = cut_layers(layers, count)
    assert len(shards) == count
    found = Counter(
        (piece.parameter, element) for pieces in shards for piece in pieces for element in range(piece.start, piece.end)
    )
    sizes = [size for sizes in layers for size in sizes]
    assert found == Counter((number, element) for number, size in enumerate(sizes) for element in range(size))


@given(LAYERS, COUNTS)
def test_pieces_are_aligned_and_each_layer_is_shared_equally(layers, count):
    shards = cut_layers(layers, count)
    assert all(piece.start % ALIGNMENT == 0 for pieces in shards for piece in pieces)
    place = 0
    for sizes in layers:
        members = range(place, place + len(sizes))
        blocks = [
            sum(ceil((piece.end - piece.start) / ALIGNMENT) for piece in pieces if piece.parameter in members)
            for pieces in shards
        ]
        assert max(blocks) - min(blocks) <= 1
        place += len(sizes)


def test_two_layers_in_two_shards():
    assert cut_layers([[128, 64], [256]], 2) == (
        (Piece(0, 0, 64), Piece(2, 0, 128)),
        (Piece(0, 64, 128), Piece(1, 0, 64), Piece(2, 128, 256)),
    )


@given(peers(), st.integers(1, 3))
def test_every_shard_has_as_many_holders_as_can_be_and_nobody_has_much_more_than_others(known, copies):
    count, live = known
    holders = assign_shards(count, live, copies)
    most = min(copies, len(live))
    assert len(holders) == count
    assert all(len(set(each)) == len(each) == most and set(each) <= live for each in holders)
    loads = Counter(peer for each in holders for peer in each)
    assert max(loads.values()) <= ceil(count * most / len(live)) + 1
    assert holders == assign_shards(count, sorted(live, reverse=True), copies)


@given(st.integers(2, 12).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_one_death_moves_only_what_the_dead_one_held_and_its_return_brings_that_back(known):
    count, dead = known
    before = assign_shards(count, range(count))
    live = set(range(count)) - {dead}
    after = assign_shards(count, live)
    assert all(set(old) - {dead} <= set(new) for old, new in zip(before, after, strict=True))
    held = {peer: {shard for shard, each in enumerate(before) if peer in each} for peer in live}
    moves = find_moves(held, after)
    assert {move.shard for move in moves} <= {shard for shard, each in enumerate(before) if dead in each}
    held_after = {peer: {shard for shard, each in enumerate(after) if peer in each} for peer in live}
    back = find_moves(held_after | {dead: set()}, before)
    assert all(move.receiver == dead for move in back)
    assert sorted(move.shard for move in back) == [shard for shard, each in enumerate(before) if dead in each]


@given(st.data())
def test_no_deaths_that_leave_a_holder_of_each_shard_lose_anything(data):
    count, live = data.draw(peers())
    holders = assign_shards(count, live)
    held = {peer: {shard for shard, each in enumerate(holders) if peer in each} for peer in sorted(live)}
    # Whoever dies and whoever comes back with nothing, in any order.
    for _ in range(data.draw(st.integers(1, 4))):
        _, survivors = data.draw(peers(count))
        left = {peer: held.get(peer, set()) for peer in sorted(survivors)}
        if set().union(*left.values()) != set(range(count)):
            continue
        holders = assign_shards(count, survivors)
        for shard, sender, receiver in find_moves(left, holders):
            assert shard in left[sender]
            assert shard not in left[receiver]
            left[receiver] = left[receiver] | {shard}
        assert all(shard in left[peer] for shard, each in enumerate(holders) for peer in each)
        held = {peer: {shard for shard, each in enumerate(holders) if peer in each} for peer in sorted(survivors)}
        assert all(sum(shard in each for each in held.values()) == min(HOLDERS, len(held)) for shard in range(count))


@given(st.integers(1, 8), st.integers(2, 8))
def test_a_host_of_neighbours_never_has_all_holders(on_a_host, hosts):
    """Megatron numbers ranks so that neighbouring pipelines, or stages of them, are on one host."""
    count = on_a_host * hosts
    assert all(len({peer // on_a_host for peer in each}) == HOLDERS for each in assign_shards(count, range(count)))


def test_what_a_dead_host_held_goes_far_from_its_other_holders():
    dead_host = [0, 1]
    holders = assign_shards(6, set(range(6)) - {*dead_host})
    assert holders[0] == (3, 5)
    assert all(one // 2 != other // 2 for one, other in holders)
