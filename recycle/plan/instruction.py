"""The instruction: the one thing that planners emit, files hold, servers execute and views draw."""

import enum
import re
from typing import Self

import msgspec

from recycle.errors import PlanFileError
from recycle.job import Server


class Op(enum.Enum):
    """What an instruction does. F, I, W and B compute; the rest is added by the passes of the planner."""

    F = "F"
    I = "I"  # noqa: E741 - the field's name for the input-gradient phase
    W = "W"
    B = "B"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    REDUCE = "REDUCE"
    STEP = "STEP"

    # Members are singletons, and tables keyed by op are read for every instruction of a plan.
    __hash__ = object.__hash__

    @property
    def is_compute(self) -> bool:
        """F, I, W or B: an instruction that keeps its server busy with one micro-batch."""
        return self in _PHASES

    @property
    def phases(self) -> tuple["Op", ...]:
        """The phases of a micro-batch that this instruction carries out; none if it does not compute."""
        return _PHASES.get(self, ())

    @property
    def is_send(self) -> bool:
        """SEND_F or SEND_B."""
        return self in (Op.SEND_F, Op.SEND_B)

    @property
    def is_receive(self) -> bool:
        """RECV_F or RECV_B."""
        return self in (Op.RECV_F, Op.RECV_B)

    @property
    def is_transfer(self) -> bool:
        """A send or a receive: an instruction that names the server at the other end."""
        return self in _PARTNERS

    @property
    def partner(self) -> "Op":
        """The op at the other end of a transfer."""
        return _PARTNERS[self]

    @property
    def is_update(self) -> bool:
        """REDUCE or STEP: an instruction of the whole stage, once per iteration."""
        return self in _UPDATES


_PHASES = {Op.F: (Op.F,), Op.I: (Op.I,), Op.W: (Op.W,), Op.B: (Op.I, Op.W)}
_PAIRS = ((Op.SEND_F, Op.RECV_F), (Op.SEND_B, Op.RECV_B))
_PARTNERS = {mine: other for send, receive in _PAIRS for mine, other in ((send, receive), (receive, send))}
_UPDATES = frozenset((Op.REDUCE, Op.STEP))
_WAYS = {op: ">" if op.is_send else "<" for op in _PARTNERS}
_BY_NAME = dict(Op.__members__)
_TEXT = re.compile(
    r"(?P<stage>[0-9]{1,6})"
    r"(?P<op>[A-Z]+(?:_[A-Z])?)"
    r"(?:(?P<home>[0-9]{1,6})\.(?P<micro_batch>[0-9]{1,6})"
    r"(?:(?P<way>[<>])(?P<peer>W[0-9]{1,6}_[0-9]{1,6}))?)?"
)
_EXPECTED = "expected a form like 2F1.5, 2SEND_F1.5>W0_3 or 2STEP"


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """One step of one server.

    The text form is ``<stage><op><home>.<micro-batch>``, with ``>peer`` behind a send and ``<peer`` behind a receive:
    ``2F1.5``, ``2SEND_F1.5>W0_3``, ``3RECV_F1.5<W1_2``, ``2STEP``.

    Attributes:
        op: what is done.
        stage: the stage it is done for; the chunk, where servers hold several.
        home: the pipeline whose data the micro-batch is, wherever it is executed; -1 where there is none.
        micro_batch: its number in its home pipeline; -1 where there is none.
        peer: the server at the other end of a transfer, None otherwise.
    """

    op: Op
    stage: int
    home: int = -1
    micro_batch: int = -1
    peer: Server | None = None

    def __str__(self) -> str:
        if self.op.is_update:
            return f"{self.stage}{self.op.value}"
        text = f"{self.stage}{self.op.value}{self.home}.{self.micro_batch}"
        if self.peer is None:
            return text
        return f"{text}{'>' if self.op.is_send else '<'}{self.peer}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form.

        Raises:
            PlanFileError: the text is no instruction.
        """
        match = _TEXT.fullmatch(text)
        op = _BY_NAME.get(match["op"]) if match else None
        if match is None or op is None:
            raise PlanFileError(f"instruction {text!r}: {_EXPECTED}")
        stage, _, home, micro_batch, way, peer = match.groups()
        if (home is None) != (op in _UPDATES):
            takes = "takes no" if op in _UPDATES else "needs a"
            raise PlanFileError(f"instruction {text!r}: {op.value} {takes} micro-batch")
        expected = _WAYS.get(op)
        if way != expected:
            hint = f"needs a server behind {expected}" if expected else "names no other server"
            raise PlanFileError(f"instruction {text!r}: {op.value} {hint}")
        if op in _UPDATES:
            return cls(op, int(stage))
        other = Server.parse(peer) if way else None
        return cls(op, int(stage), int(home), int(micro_batch), other)
