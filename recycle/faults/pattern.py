"""Which instruction is meant: an instruction's text, of which the end may be left out."""

import re
from typing import NamedTuple, Self

from recycle.faults.errors import FaultError
from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op

_NUMBER = r"(?:0|[1-9][0-9]{0,5})"
_TEXT = re.compile(
    rf"(?P<stage>{_NUMBER})"
    r"(?P<op>[A-Z]+(?:_[A-Z])?)"
    rf"(?:(?P<home>{_NUMBER})(?:\.(?P<micro_batch>{_NUMBER})(?:(?P<way>[<>])(?P<peer>W{_NUMBER}_{_NUMBER}))?)?)?"
)
_OPS = {op.value: op for op in Op}


class InstructionPattern(NamedTuple):
    """What an instruction must be like: its text up to where nothing more is asked.

    ``2F1.5`` is one micro-batch's forward on stage 2, ``2F1`` that of any micro-batch of pipeline 1, ``2SEND_F`` any
    send, ``2STEP`` the optimizer step.

    Attributes:
        text: how the instruction's begins, which does not end within a number.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take the beginning of an instruction's text.

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
        return cls(text)

    def matches(self, instruction: Instruction) -> bool:
        """Whether an instruction is one of those that are meant."""
        begin, rest = str(instruction)[: len(self.text)], str(instruction)[len(self.text) :]
        return begin == self.text and not (begin[-1].isdigit() and rest[:1].isdigit())

    def require_possible(self, job: Job, server: Server) -> None:
        """Refuse what a server of a job can never execute.

        Raises:
            FaultError: it is of a stage that the server has not got, or the job has no such micro-batch, transfer or
                server.
        """
        match = _TEXT.fullmatch(self.text)
        assert match is not None, self.text
        stage, op = int(match["stage"]), _OPS[match["op"]]
        chunks = placed(job, server).chunks
        if stage not in chunks:
            has = " and ".join(map(job.chunk_text, chunks))
            raise FaultError(
                f"instruction is '{self}', of {job.chunk_text(stage)}, and {server} has {has}: "
                f"write {chunks[0]}{op.value}..., or name a server of {job.chunk_text(stage)}"
            )
        if int(match["home"] or 0) >= job.pipelines:
            raise FaultError(f"instruction is '{self}': the job has pipelines 0 to {job.pipelines - 1}")
        if int(match["micro_batch"] or 0) >= job.micro_batches:
            raise FaultError(f"instruction is '{self}': a pipeline has micro-batches 0 to {job.micro_batches - 1}")
        last = len(job.stages) - 1
        end = {Op.RECV_F: 0, Op.SEND_B: 0, Op.SEND_F: last, Op.RECV_B: last}.get(op)
        if stage == end:
            raise FaultError(
                f"instruction is '{self}': {job.chunk_text(end)} has no {op.value}; choose another instruction"
            )
        if match["peer"]:
            job.require_servers([Server.parse(match["peer"])])
