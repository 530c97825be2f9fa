"""How a stage's state gets from one server to a peer that lacks it."""

import hmac
import mmap
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import torch

from recycle.control.membership.messages import read_early
from recycle.runtime.errors import ConnectionLost, RunError
from recycle.runtime.net.network import Link
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.plain_words import plain

LARGEST_HEAD = 1 << 24
ALIGNMENT = 64
LENGTH = 8
"""Bytes that say how long a description is."""


class TensorHead(msgspec.Struct, frozen=True, array_like=True):
    """What a tensor is, for who has to make room for it."""

    name: str
    shape: tuple[int, ...]
    type: str


class StateHead(msgspec.Struct, frozen=True, array_like=True):
    """What comes before the state itself."""

    step: int
    entries: list[TensorHead]


read_early(StateHead)


# What a state can hold, by the names under which it travels.
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)
TYPES = {str(each).removeprefix("torch."): each for each in (*FLOATING, *WHOLE)}


def describe_state(step: int, state: Mapping[str, torch.Tensor]) -> bytes:
    """What has to be known of a version to make room for it."""
    entries = [
        TensorHead(name, tuple(each.shape), str(each.dtype).removeprefix("torch.")) for name, each in state.items()
    ]
    return msgspec.msgpack.encode(StateHead(step, entries))


def make_room(head: bytes) -> tuple[int, dict[str, torch.Tensor]]:
    """The step of a version that was described, and memory for it by name.

    Raises:
        ConnectionLost: the description cannot be read.
    """
    try:
        described = msgspec.msgpack.decode(head, type=StateHead)
        outlines = {
            each.name: torch.empty(each.shape, dtype=TYPES[each.type], device="meta") for each in described.entries
        }
        room = _fresh_memory(sum(_padded(each.nbytes) for each in outlines.values()))
    except (msgspec.DecodeError, KeyError, RuntimeError, OverflowError, OSError) as error:
        raise ConnectionLost(f"a peer sends a state that cannot be read: {plain(str(error))}") from error
    state, start = {}, 0
    for name, each in outlines.items():
        state[name] = room[start : start + each.nbytes].view(each.dtype).reshape(each.shape)
        start += _padded(each.nbytes)
    return described.step, state


def _padded(size: int) -> int:
    """So many bytes, and those after which any tensor can begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _fresh_memory(size: int) -> torch.Tensor:
    """Memory in large pages where the kernel has them: small ones take longer to come by than to fill."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pack(step: int, state: Mapping[str, torch.Tensor], room: int) -> torch.Tensor:
    """A small state in one tensor, in host memory.

    Args:
        step: of it.
        state: by name.
        room: the bytes of the tensor.

    Raises:
        RunError: the state takes more.
    """
    head = describe_state(step, state)
    contents = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in state.values()]
    packed = len(head).to_bytes(LENGTH, "little") + head + b"".join(each.numpy().tobytes() for each in contents)
    if len(packed) > room:
        raise RunError(f"what the training code knows takes {len(packed)} bytes, and there is room for {room} of them")
    return torch.frombuffer(bytearray(packed.ljust(room, b"\0")), dtype=torch.uint8)


def unpack(step: int, packed: torch.Tensor) -> dict[str, torch.Tensor]:
    """What was packed of a step.

    Raises:
        ConnectionLost: it is something else.
    """
    content = packed.numpy().tobytes()
    start = LENGTH + int.from_bytes(content[:LENGTH], "little")
    found, state = make_room(content[LENGTH:start])
    if found != step or start + sum(each.nbytes for each in state.values()) > len(content):
        raise ConnectionLost(f"what is said to be of version {step} is of version {found}, or is cut off")
    for each in state.values():
        each.reshape(-1).view(torch.uint8).copy_(packed[start : start + each.nbytes])
        start += each.nbytes
    return state


def send_state(link: Link, secret: bytes, step: int, state: Mapping[str, torch.Tensor]) -> None:
    """Send a version of a stage's state, through host memory wherever it is.

    Who can alter what is on its way cannot make the checksum that follows it. That is computed while the state is sent.

    Args:
        link: to the peer.
        secret: which both have, for this view or meeting alone.
        step: of the version.
        state: by name.

    Raises:
        ConnectionLost: the peer is gone.
    """
    content = describe_state(step, state)
    head, checksum = torch.frombuffer(bytearray(content), dtype=torch.uint8), _checksum(secret, content)
    link.send(torch.tensor([len(head)]), STATE).wait()
    link.send(head, STATE).wait()
    for each in state.values():
        tensor = each.detach().cpu().contiguous()
        sent = link.send(tensor, STATE)
        checksum.update(_bytes_of(tensor))
        sent.wait()
    link.send(torch.frombuffer(bytearray(checksum.digest()), dtype=torch.uint8), STATE).wait()


def receive_state(link: Link, secret: bytes) -> tuple[int, dict[str, torch.Tensor]]:
    """Receive what ``send_state`` sends: the step, and the state by name, in host memory.

    Args:
        link: to the peer.
        secret: which both have, for this view or meeting alone.

    Raises:
        ConnectionLost: the peer is gone, or what comes is not what it has sent.
    """
    length = torch.zeros(1, dtype=torch.int64)
    link.receive(length, STATE).wait()
    if not 0 < int(length) <= LARGEST_HEAD:
        raise ConnectionLost(f"a peer announces a state with a head of {int(length)} bytes")
    content = torch.empty(int(length), dtype=torch.uint8)
    link.receive(content, STATE).wait()
    step, state = make_room(content.numpy().tobytes())
    checksum = _checksum(secret, content.numpy().tobytes())
    there: torch.Tensor | None = None
    for tensor in state.values():
        coming = link.receive(tensor, STATE)
        if there is not None:
            checksum.update(_bytes_of(there))
        coming.wait()
        there = tensor
    if there is not None:
        checksum.update(_bytes_of(there))
    said = torch.empty(checksum.digest_size, dtype=torch.uint8)
    link.receive(said, STATE).wait()
    if not hmac.compare_digest(said.numpy().tobytes(), checksum.digest()):
        raise ConnectionLost(f"version {step} of a peer's state is not as it was sent")
    return step, state


def _checksum(secret: bytes, head: bytes) -> "hmac.HMAC":
    # A head and what follows it must not be taken for another head.
    return hmac.new(secret, len(head).to_bytes(LENGTH, "little") + head, "sha256")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
