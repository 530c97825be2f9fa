"""Packed plans: a plan in a catalogue, with every server's program compressed on its own.

Plans of one catalogue have most in common: a server does nearly the same whoever is dead elsewhere. So each program is
compressed against the programs of the same server in a few plans, its reference, of which only differences remain; and
what one server needs is unpacked without the rest.
"""

import zlib
from collections.abc import Mapping, Sequence

import msgspec

from recycle.errors import PlanFileError
from recycle.job import Server
from recycle.plan.document import decode_plan, encode_plan, parse_program
from recycle.plan.instruction import Instruction
from recycle.plan.plan import Plan

REACH = 32_768
"""How far back the compression looks: no reference is longer."""

References = Mapping[str, bytes]
"""Per server, what its programs are compressed against; a server without one has an empty one."""


class PackedPlan(msgspec.Struct, frozen=True):
    """A plan, packed.

    Attributes:
        head: the plan file without programs.
        programs: per server, its compressed program.
    """

    head: bytes
    programs: dict[str, bytes]

    def plan(self, source: str) -> Plan:
        """The plan without programs.

        Args:
            source: what to call it in errors.

        Raises:
            PlanFileError: it is damaged.
        """
        return decode_plan(self.head, source, packed=len(self.programs))

    def program(self, server: Server, references: References, source: str, room: int) -> tuple[Instruction, ...]:
        """The program of one server.

        Args:
            server: which.
            references: what it was packed against.
            source: what to call the plan in errors.
            room: bytes of its text at most, by its job.

        Raises:
            PlanFileError: it is not there, or damaged.
        """
        name = str(server)
        try:
            text = _unpack(self.programs[name], references.get(name, b""), room)
        except (KeyError, zlib.error, UnicodeDecodeError) as error:
            raise PlanFileError(f"{source}: no readable program for {name}; make the catalogue again") from error
        return parse_program(text.split(), f"{source}: $.programs.{name}")


def pack_plan(plan: Plan, references: References) -> PackedPlan:
    """Pack a plan."""
    programs = {
        str(server): _pack(_text(plan.programs[server]), references.get(str(server), b""))
        for server in sorted(plan.programs)
    }
    return PackedPlan(encode_plan(msgspec.structs.replace(plan, programs={})), programs)


def make_references(plans: Sequence[Plan]) -> References:
    """What plans of the same job are packed against: the programs of these."""
    texts: dict[str, bytes] = {}
    for plan in plans:
        for server, program in plan.programs.items():
            name = str(server)
            texts[name] = (texts.get(name, b"") + _text(program) + b" ")[-REACH:]
    return texts


def encode_references(references: References) -> bytes:
    """References as bytes, compressed."""
    return msgspec.msgpack.encode({name: zlib.compress(text, 9) for name, text in references.items()})


def decode_references(content: bytes, source: str) -> References:
    """References from bytes.

    Raises:
        PlanFileError: they are damaged.
    """
    try:
        packed = msgspec.msgpack.decode(content, type=dict[str, bytes])
        return {name: _unpack(text, b"", REACH).encode() for name, text in packed.items()}
    except (msgspec.DecodeError, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise PlanFileError(f"{source}: the references are damaged; make the catalogue again") from error


def _text(program: Sequence[Instruction]) -> bytes:
    return " ".join(map(str, program)).encode()


def _pack(text: bytes, reference: bytes) -> bytes:
    packer = zlib.compressobj(9, zdict=reference)
    return packer.compress(text) + packer.flush()


def _unpack(packed: bytes, reference: bytes, room: int) -> str:
    unpacker = zlib.decompressobj(zdict=reference)
    # What says that it is small may unpack to a thousand times as much.
    text = unpacker.decompress(packed, room + 1)
    if not unpacker.eof or len(text) > room:
        raise zlib.error("cut short, or too long")
    return text.decode()
