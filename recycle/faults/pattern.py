"""Which instruction is meant: an instruction's text, of which the end may be left out."""

import re
from typing import NamedTuple, Self

from recycle.faults.errors import FaultError
from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op

_TEXT = re.compile(
    r"(?P<stage>[0-9]{1,6})"
    r"(?P<op>[A-Z]+(?:_[A-Z])?)"
    r"(?:(?P<home>[0-9]{1,6})(?:\.(?P<micro_batch>[0-9]{1,6})(?:(?P<way>[<>])(?P<peer>W[0-9]{1,6}_[0-9]{1,6}))?)?)?",
    re.ASCII,
)
_OPS = {op.value: op for op in Op}


class InstructionPattern(NamedTuple):
    """What an instruction must be like; None stands for any.

    Its text is that of an instruction up to where nothing more is asked: ``2F1.5`` is one micro-batch's forward on
    stage 2, ``2F1`` that of any micro-batch of pipeline 1, ``2SEND_F`` any send, ``2STEP`` the optimizer step.

    Attributes:
        op: what it does.
        stage: of which stage.
        home: whose micro-batch.
        micro_batch: its number in its home pipeline.
        peer: the server at the other end of a transfer.
    """

    op: Op
    stage: int
    home: int | None = None
    micro_batch: int | None = None
    peer: Server | None = None

    def __str__(self) -> str:
        text = f"{self.stage}{self.op.value}"
        if self.home is not None:
            text += f"{self.home}"
        if self.micro_batch is not None:
            text += f".{self.micro_batch}"
        if self.peer is not None:
            text += f"{'>' if self.op.is_send else '<'}{self.peer}"
        return text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form.

        Raises:
            FaultError: no instruction's text starts like this.
        """
        match = _TEXT.fullmatch(text)
        op = _OPS.get(match["op"]) if match else None
        if match is None or op is None:
            raise FaultError(f"instruction is {text!r}: write how its text starts, for example 2F1.5, 2SEND_F or 2STEP")
        if op.is_update and match["home"]:
            raise FaultError(
                f"instruction is {text!r}: {op.value} has no micro-batch; write {match['stage']}{op.value}"
            )
        if match["peer"] and (not op.is_transfer or (match["way"] == ">") != op.is_send):
            raise FaultError(
                f"instruction is {text!r}: only sends have a server behind >, and only receives one behind <; "
                "leave it out"
            )
        home, micro_batch = (int(match[name]) if match[name] else None for name in ("home", "micro_batch"))
        peer = Server.parse(match["peer"]) if match["peer"] else None
        return cls(op, int(match["stage"]), home, micro_batch, peer)

    def matches(self, instruction: Instruction) -> bool:
        """Whether an instruction is one of those that are meant."""
        return (
            instruction.op is self.op
            and instruction.stage == self.stage
            and self.home in (None, instruction.home)
            and self.micro_batch in (None, instruction.micro_batch)
            and self.peer in (None, instruction.peer)
        )

    def require_possible(self, job: Job, server: Server) -> None:
        """Refuse what a server of a job can never execute.

        Raises:
            FaultError: it is of a stage that the server has not got, or the job has no such micro-batch, transfer or
                server.
        """
        chunks = placed(job, server).chunks
        if self.stage not in chunks:
            has = " and ".join(map(job.chunk_text, chunks))
            raise FaultError(
                f"instruction is '{self}', of {job.chunk_text(self.stage)}, and {server} has {has}: "
                f"write {chunks[0]}{self.op.value}..., or name a server of {job.chunk_text(self.stage)}"
            )
        if self.home is not None and self.home >= job.pipelines:
            raise FaultError(f"instruction is '{self}': the job has pipelines 0 to {job.pipelines - 1}")
        if self.micro_batch is not None and self.micro_batch >= job.micro_batches:
            raise FaultError(f"instruction is '{self}': a pipeline has micro-batches 0 to {job.micro_batches - 1}")
        last = len(job.stages) - 1
        end = {Op.RECV_F: 0, Op.SEND_B: 0, Op.SEND_F: last, Op.RECV_B: last}.get(self.op)
        if self.stage == end:
            raise FaultError(
                f"instruction is '{self}': {job.chunk_text(end)} has no {self.op.value}; choose another instruction"
            )
        if self.peer is not None:
            job.require_servers([self.peer])
