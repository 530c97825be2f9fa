"""How a version is cut into the parts that the peers of a stage copy."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import TYPES
from recycle.runtime.keep.erasure import CODE
from recycle.runtime.keep.layout import (
    FIRST,
    ShardOutline,
    Version,
    VersionHead,
    bytes_of,
    count_bytes,
    cut_by_shards,
    cut_evenly,
    held_by_all,
    make_version,
    put_together,
    recut,
    shard_of,
)
from recycle.state.ladder import StatePart
from recycle.state.shards import assign_shards

LENGTHS = (64, 33, 7)
"""Elements of the pieces of each shard."""


class Shards:
    """Those that one peer holds."""

    layers = ()

    def __init__(self, count, held):
        self.count, self.held = count, held

    def pieces(self, shard):
        found = {}
        for key in ("exp_avg", "exp_avg_sq"):
            for place, length in enumerate(LENGTHS):
                value = 100 * shard + 10 * place + len(key)
                here = torch.full((length,), float(value))
                found[f"{key}/{place}"] = here if shard in self.held else here.to("meta")
        return found


def common():
    """What all peers hold, in any order."""
    return {
        f"parameter/{name}": torch.arange(size) + place
        for place, (name, size) in enumerate(zip("dbca", (1, 90, 40, 7), strict=True))
    }


def part(number, parts):
    return StatePart(0, 0, 3, number, parts)


@given(st.integers(1, 6), st.data())
def test_the_parts_of_all_peers_are_the_whole_version(count, data):
    live = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    holders = assign_shards(count, live)
    # Each peer has no content but that of the shards that it holds.
    versions = [
        cut_by_shards(common(), Shards(count, {shard for shard, each in enumerate(holders) if peer in each}), live)
        for peer in live
    ]
    heads = {each.describe(3) for each in versions}
    assert len(heads) == 1
    step, room = make_version(heads.pop(), len(live))
    assert step == 3
    for number, version in enumerate(versions):
        wanted = version.range_of(part(number, len(live)))
        assert wanted == room.range_of(part(number, len(live)))
        content = b"".join(map(bytes, bytes_of(version.state, wanted)))
        start = 0
        for target in bytes_of(room.state, wanted):
            target[:] = content[start : start + len(target)]
            start += len(target)
        assert start == len(wanted)
    expected = common()
    assert held_by_all(room.state).keys() == expected.keys()
    assert all(torch.equal(room.state[name], each) for name, each in expected.items())
    everything = Shards(count, range(count))
    for shard in range(count):
        found, pieces = shard_of(room.state, shard), everything.pieces(shard)
        assert list(found) == list(pieces)
        assert all(torch.equal(found[name], each) for name, each in pieces.items())


def test_a_version_that_is_cut_in_another_way_is_not_read():
    version = cut_by_shards(common(), Shards(2, {0, 1}), [0, 1])
    size = count_bytes(version.state)
    head = msgspec.msgpack.decode(version.describe(3), type=VersionHead)
    make_version(msgspec.msgpack.encode(head), 2)
    for edges in ([0, size], [0, 5, 5, size], [0, size + 1, size], [1, 5, size], [0, 5, size - 1], []):
        with pytest.raises(ConnectionLost, match="is said to be cut at"):
            make_version(msgspec.msgpack.encode(msgspec.structs.replace(head, edges=tuple(edges))), 2)
    for bad in (b"", b"head", version.describe(3)[:-1]):
        with pytest.raises(ConnectionLost, match="cannot be read"):
            make_version(bad, 2)


def test_a_version_of_a_release_with_another_code_is_refused():
    version = cut_by_shards(common(), Shards(2, {0, 1}), [0, 1])
    head = msgspec.msgpack.decode(version.describe(3), type=list)
    for content, named in ((head[:-1], "'zfec'"), ([*head[:-1], "another"], "'another'")):
        with pytest.raises(ConnectionLost, match=f"has the code {named} and not '{CODE}': go on from a checkpoint"):
            make_version(msgspec.msgpack.encode(content), 2)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("kind", TYPES)
def test_the_bytes_of_any_tensor_are_where_it_lies(kind, shape):
    tensor = torch.ones(shape, dtype=TYPES[kind], requires_grad=TYPES[kind].is_floating_point)
    for each in bytes_of({"some": tensor}, range(tensor.nbytes)):
        each[:] = bytes(len(each))
    assert not tensor.any()


@given(st.integers(1, 5))
def test_what_each_peer_has_for_itself_is_in_the_first_part_alone(parts):
    own = torch.full((50,), 3, dtype=torch.uint8)
    version = cut_evenly({**common(), f"{FIRST}own": own}, parts)
    assert next(iter(version.state)) == f"{FIRST}own"
    sizes = [len(version.range_of(part(number, parts))) for number in range(parts)]
    assert max(sizes[0] - 50, *sizes[1:], 0) - min([sizes[0] - 50, *sizes[1:]]) <= 1
    assert sum(sizes) == count_bytes(version.state)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_an_optimizer_is_cut_into_shards_and_into_others_and_put_together_again(sizes, count, other, data):
    names = [f"layer.{place}" for place in range(len(sizes))]
    split = data.draw(st.integers(1, len(sizes) - 1))
    state = {}
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        state[f"parameter/{name}"] = torch.arange(size) + 10.0 * place
        for key in ("exp_avg", "exp_avg_sq"):
            state[f"optimizer/{key}/{name}"] = torch.arange(size) + 100.0 * place + len(key)
        state[f"optimizer/step/{name}"] = torch.tensor(7.0)
    outlines = [ShardOutline(tuple(names), (split, len(sizes) - split), each) for each in (count, other)]
    version = Version(state, ())
    for outline in outlines:
        version = Version(recut(version, outline), (), outline)
        # What is counted is with all peers, and each shard has its own part of what is not.
        assert {name for name in held_by_all(version.state) if "/exp_avg" in name} == set()
        assert held_by_all(version.state).keys() == {each for each in state if "/exp_avg" not in each}
        held = [count_bytes(shard_of(version.state, shard)) for shard in range(outline.count)]
        assert sum(held) == 2 * 4 * sum(sizes)
    for found in (recut(version, None), put_together(version)):
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], each) for name, each in state.items())


def test_a_first_version_has_nothing_of_an_optimizer_to_cut():
    state = {"parameter/layer": torch.zeros(3)}
    assert recut(Version(state, ()), ShardOutline(("layer",), (1,), 2)).keys() == state.keys()
