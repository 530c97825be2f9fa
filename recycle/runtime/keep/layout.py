"""A version as bytes: its tensors one behind the other, and the parts that each live peer of the stage copies."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import torch

from recycle.control.membership.messages import read_early
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import describe_state, make_room
from recycle.runtime.keep.erasure import CODE
from recycle.runtime.step.shard_steps import COUNTED
from recycle.runtime.step.trainee import KeptShards
from recycle.state.ladder import StatePart
from recycle.state.shards import Piece, assign_shards, cut_layers

SHARD = "shard"
"""What the names of a shard's tensors begin with; its number follows."""

FIRST = "first/"
"""What the names of tensors begin with of which peers have different ones: that of the first peer is kept."""

PARAMETER = "parameter/"
"""What the names of parameters begin with."""

SMALL_INTEGERS = {1: torch.uint8, 2: torch.int16}
"""As what numbers of one and two bytes are read, of which numpy has not all kinds."""


class ShardOutline(msgspec.Struct, frozen=True, array_like=True):
    """How the optimizer of a version is cut into shards.

    Attributes:
        parameters: their names, in the order in which they are cut.
        layers: of how many of them, one after another, each layer consists.
        count: how many shards there are.
    """

    parameters: tuple[str, ...]
    layers: tuple[int, ...]
    count: int


class VersionHead(msgspec.Struct, frozen=True, array_like=True):
    """What has to be known of a version to make room for it, and for its parts.

    Attributes:
        state: its tensors.
        edges: with which byte each part begins, and the last one ends.
        shards: how its optimizer is cut; None where it is not.
        code: of the pieces that are parity.
    """

    state: bytes
    edges: tuple[int, ...]
    shards: ShardOutline | None = None
    code: str = ""


read_early(VersionHead)


class Version(NamedTuple):
    """A version, cut into parts.

    Attributes:
        state: its tensors, in an order that all peers know; those of other peers' parts need not have a content.
        edges: with which byte each part begins, and the last one ends.
        shards: how its optimizer is cut; None where it is not.
    """

    state: Mapping[str, torch.Tensor]
    edges: Sequence[int]
    shards: ShardOutline | None = None

    def describe(self, step: int) -> bytes:
        """What has to be known of it to make room for it.

        Args:
            step: which version it is.
        """
        return msgspec.msgpack.encode(
            VersionHead(describe_state(step, self.state), tuple(self.edges), self.shards, CODE)
        )

    def range_of(self, part: StatePart) -> range:
        """Which of its bytes are in a part."""
        return range(*self.edges[part.number : part.number + 2])


def cut_evenly(state: Mapping[str, torch.Tensor], parts: int) -> Version:
    """A version that all peers hold, in equal parts; what each has for itself is in the first one.

    Args:
        state: the version, by name; not all peers need to have it in the same order.
        parts: how many.
    """
    ordered = dict(sorted(state.items(), key=lambda item: (not item[0].startswith(FIRST), item[0])))
    own = count_bytes({name: each for name, each in ordered.items() if name.startswith(FIRST)})
    total = count_bytes(ordered) - own
    return Version(ordered, [0, *(own + number * total // parts for number in range(1, parts + 1))])


def cut_by_shards(state: Mapping[str, torch.Tensor], shards: KeptShards, peers: Sequence[int]) -> Version:
    """A version whose optimizer is in shards: each peer's part has those that it owns, and some of what all hold.

    Args:
        state: what all peers hold, by name.
        shards: of the optimizer.
        peers: the pipelines of the live peers, in the order of their parts.
    """
    parts: list[dict[str, torch.Tensor]] = [{} for _ in peers]
    total, start = count_bytes(state), 0
    for name, tensor in sorted(state.items()):
        parts[min((2 * start + tensor.nbytes) * len(peers) // max(2 * total, 1), len(peers) - 1)][name] = tensor
        start += tensor.nbytes
    for shard, holders in enumerate(assign_shards(shards.count, peers)):
        pieces = shards.pieces(shard)
        parts[peers.index(holders[0])].update({f"{SHARD}/{shard}/{name}": each for name, each in pieces.items()})
    edges = accumulate((count_bytes(each) for each in parts), initial=0)
    return Version({name: each for part in parts for name, each in part.items()}, [*edges], outline_of(state, shards))


def outline_of(state: Mapping[str, torch.Tensor], shards: KeptShards) -> ShardOutline:
    """How a version's optimizer is cut into shards.

    Args:
        state: what all peers hold of it, by name.
        shards: of the optimizer.
    """
    # What is stepped comes first, and is in the same order with all peers.
    parameters = [name.removeprefix(PARAMETER) for name in state if name.startswith(PARAMETER)]
    return ShardOutline(tuple(parameters[: sum(shards.layers)]), tuple(shards.layers), shards.count)


def below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part of a state whose names begin so, by what follows that."""
    return {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}


def shard_of(state: Mapping[str, torch.Tensor], shard: int) -> Mapping[str, torch.Tensor]:
    """What a version has of a shard, by the names that the shard's pieces have."""
    return below(f"{SHARD}/{shard}/", state)


def held_by_all(state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """What a version has besides shards."""
    return {name: each for name, each in state.items() if not name.startswith(f"{SHARD}/")}


def put_together(version: Version) -> Mapping[str, torch.Tensor]:
    """The state of a version as it is where the optimizer is in no shards, by name.

    Args:
        version: with all parts.
    """
    outline = version.shards
    if outline is None:
        return version.state
    whole = dict(held_by_all(version.state))
    for shard, pieces in enumerate(_pieces(whole, outline)):
        for name, content in shard_of(version.state, shard).items():
            key, _, place = name.partition("/")
            piece = pieces[int(place)]
            parameter = outline.parameters[piece.parameter]
            like = whole[f"{PARAMETER}{parameter}"]
            moment = whole.setdefault(_moment(key, parameter), torch.empty_like(like))
            moment.view(-1)[piece.start : piece.end] = content
    return whole


def recut(version: Version, outline: ShardOutline | None) -> Mapping[str, torch.Tensor]:
    """The state of a version, with its optimizer in other shards, or in none.

    Args:
        version: with all parts.
        outline: how its optimizer is to be cut; None where it is not.
    """
    if version.shards == outline:
        return version.state
    whole = dict(put_together(version))
    if outline is None:
        return whole
    names = whole.keys() & {_moment(key, each) for key in _moments(whole) for each in outline.parameters}
    moments = {name: whole.pop(name).reshape(-1) for name in names}
    for shard, pieces in enumerate(_pieces(whole, outline)):
        for key in _moments(moments):
            for place, piece in enumerate(pieces):
                moment = moments[_moment(key, outline.parameters[piece.parameter])]
                whole[f"{SHARD}/{shard}/{key}/{place}"] = moment[piece.start : piece.end]
    return whole


def _pieces(state: Mapping[str, torch.Tensor], outline: ShardOutline) -> Sequence[Sequence[Piece]]:
    """What each shard consists of."""
    sizes = iter([state[f"{PARAMETER}{name}"].numel() for name in outline.parameters])
    return cut_layers([[next(sizes) for _ in range(length)] for length in outline.layers], outline.count)


def _moment(key: str, parameter: str) -> str:
    return f"optimizer/{key}/{parameter}"


def _moments(state: Mapping[str, torch.Tensor]) -> Sequence[str]:
    """What the optimizer has for each element of a parameter."""
    keys = {name.split("/")[1] for name in state if name.startswith("optimizer/")}
    return sorted(keys - set(COUNTED))


def make_version(head: bytes, parts: int) -> tuple[int, Version]:
    """The step of a version that was described, and memory for it.

    Args:
        head: its description.
        parts: how many there must be.

    Raises:
        ConnectionLost: the description cannot be read, or another release of recycle made it.
    """
    try:
        found = msgspec.msgpack.decode(head, type=VersionHead)
    except msgspec.DecodeError as error:
        raise ConnectionLost(f"a version is described in a way that cannot be read: {error}") from error
    if found.code != CODE:
        raise ConnectionLost(
            f"a version was kept by another release of recycle, whose parity has the code {found.code or 'zfec'!r} and "
            f"not {CODE!r}: go on from a checkpoint"
        )
    step, state = make_room(found.state)
    edges = found.edges
    rising = all(start <= end for start, end in pairwise(edges))
    if not rising or len(edges) != parts + 1 or (edges[0], edges[-1]) != (0, count_bytes(state)):
        raise ConnectionLost(f"a version of {count_bytes(state)} bytes is said to be cut at {list(edges)}")
    return step, Version(state, edges, found.shards)


def count_bytes(state: Mapping[str, torch.Tensor]) -> int:
    """How many bytes a version has."""
    return sum(each.nbytes for each in state.values())


def bytes_of(state: Mapping[str, torch.Tensor], wanted: range) -> Iterator[memoryview]:
    """Some bytes of a version where they lie, tensor by tensor.

    Args:
        state: the version, in order, of contiguous tensors.
        wanted: which bytes.
    """
    end = 0
    for each in state.values():
        start, end = end, end + each.nbytes
        first, last = max(wanted.start, start), min(wanted.stop, end)
        if first < last:
            yield _memory_of(each, slice(first - start, last - start))


def _memory_of(tensor: torch.Tensor, wanted: slice) -> memoryview:
    """Some bytes of a contiguous tensor; what lies in host memory is not copied, and of others only these.

    A version has hundreds of small ones, and nobody else computes between two calls: so it takes as few as can be.
    """
    content = tensor.detach() if tensor.requires_grad else tensor
    if not content.is_cpu:
        return content.reshape(-1).view(torch.uint8)[wanted].cpu().numpy().data
    if content.itemsize in SMALL_INTEGERS:
        content = content.view(SMALL_INTEGERS[content.itemsize])
    return content.numpy().data.cast("B")[wanted]
