"""Point-to-point transfers: what travels between servers. Receives are posted early, sends never block the list.

A device computes with what is received when it has come, and the host goes on meanwhile. It looks later whether that
was received at all; until then, nothing that was computed with it is of use.

A send completes only when its receive is posted, so a receive that is posted late delays its sender; and a send
cannot be asked whether it is done, only waited for. Hence every transfer has an owner here until somebody waited.

Links tell transfers apart by their order. The two lists of a link's ends have them in the same order, as the plan's
checker has proved, and both ends are started in the order of the list, however early. Where a network has one queue,
they are started at their turn: the checker has proved that nobody waits for ever even if each waits for its partner.
What a receive fills is made where it is received, so that it waits for nothing that a device computes before it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Recorder
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.stage import PipelineStage
from recycle.runtime.net.network import Network, Transfer
from recycle.runtime.net.transfer_key import Carried, TransferKey


class Incoming(NamedTuple):
    """A receive that is posted: its instruction, what it fills, and what to wait for, unless it failed as it began."""

    instruction: Instruction
    buffer: torch.Tensor
    work: Transfer | None


class Outgoing(NamedTuple):
    """A send that has begun; the tensor lives until it was waited for."""

    tensor: torch.Tensor
    work: Transfer


class P2PTransfers:
    """Transfers of one server in one view.

    Args:
        network: the groups of the view.
        stages: of the server, by number; what is received is allocated to their specifications.
        recorder: gets, for each receive, how long was waited for it.
        ahead: how many receives are posted before their turn in the list, where the network lets them overtake.
        most_sends: how many sends may be in flight before the oldest is waited for. It bounds the memory of gradients
            on their way; the lists cannot deadlock even if every send waits for its receive.
    """

    def __init__(
        self,
        network: Network,
        stages: Mapping[int, PipelineStage],
        recorder: Recorder,
        ahead: int = 4,
        most_sends: int = 16,
    ) -> None:
        self._network = network
        self._stages = stages
        self._recorder = recorder
        self._ahead = 0 if network.one_queue else ahead
        self._most_sends = most_sends
        self._receives: Sequence[Instruction] = ()
        self._place: dict[Instruction, int] = {}
        self._posted = 0
        self._incoming: dict[TransferKey, Incoming] = {}
        self._outgoing: deque[Outgoing] = deque()

    def begin(self, program: Sequence[Instruction]) -> None:
        """Post the first receives of an iteration; the one before has ended."""
        in_flight = len(self._incoming) + len(self._outgoing)
        assert not in_flight, f"{in_flight} transfers in flight may be mixed up with this iteration's"
        self._receives = [each for each in program if each.op.is_receive]
        self._place = {each: place for place, each in enumerate(self._receives)}
        self._posted = 0
        self._post_until(self._ahead)

    def expect(self, instruction: Instruction) -> None:
        """The turn of a receive has come: it, and those close behind it, are posted."""
        self._post_until(self._place[instruction] + 1 + self._ahead)

    def take(self, key: TransferKey) -> tuple[torch.Tensor, Transfer | None]:
        """What a receive brings, for what this thread starts next on the device. The caller owns it from then on.

        Returns:
            It, and what is still to be waited for until it has surely come.
        """
        incoming = self._incoming.pop(key)
        coming: Transfer | None = None
        start = self._recorder.mark()
        try:
            if incoming.work is not None and not incoming.work.precede():
                coming = incoming.work
        except ViewBroken as error:
            self._network.line.bear(error)
            fill(incoming.buffer)
        self._recorder.add(incoming.instruction, start, self._recorder.mark())
        return incoming.buffer, coming

    def send(self, instruction: Instruction, tensor: torch.Tensor) -> None:
        """Start a send; it is owned here from then on."""
        assert instruction.peer is not None
        tensor = tensor.detach().contiguous()
        try:
            while len(self._outgoing) >= self._most_sends:
                self._outgoing.popleft().work.wait()
            work = self._network.link(instruction.peer).send(tensor, key_of(instruction))
        except ViewBroken as error:
            self._network.line.bear(error)
        else:
            self._outgoing.append(Outgoing(tensor, work))

    def finish(self) -> None:
        """End an iteration: wait for its last sends. Nothing is in flight after it."""
        while self._outgoing:
            self._outgoing.popleft().work.wait()
        assert not self._incoming, f"never used: {', '.join(str(each.instruction) for each in self._incoming.values())}"

    def _post_until(self, count: int) -> None:
        for instruction in self._receives[self._posted : count]:
            assert instruction.peer is not None
            stage = self._stages[instruction.stage]
            spec = stage.input if instruction.op is Op.RECV_F else stage.output
            assert spec is not None, f"{instruction} on a stage that receives nothing"
            key = key_of(instruction)
            work = None
            try:
                link = self._network.link(instruction.peer)
                with link.apart(spec.device):
                    buffer = spec.empty()
                    if not self._network.ends_are_right:
                        # Given up, it ends with what it holds.
                        fill(buffer)
                    work = link.receive(buffer, key)
            except ViewBroken as error:
                self._network.line.bear(error)
                buffer = spec.empty()
                fill(buffer)
            self._incoming[key] = Incoming(instruction, buffer, work)
            self._posted += 1


def fill(buffer: torch.Tensor) -> None:
    """Put in place of what has not come what computing goes on with, though nobody needs the result.

    Finite rows that differ: no loss is other than a number, and no expert gets all tokens.
    """
    buffer.copy_(torch.linspace(-1.0, 1.0, buffer.numel(), device=buffer.device).view(buffer.shape))


def key_of(instruction: Instruction) -> TransferKey:
    """What a transfer carries, as both of its ends know it, and so does the instruction that computes it."""
    op, stage = instruction.op, instruction.stage
    carried = Carried.OUTPUT if op in (Op.F, Op.SEND_F, Op.RECV_F) else Carried.GRADIENT
    boundary = stage if op in (Op.F, Op.SEND_F, Op.RECV_B) else stage - 1
    return TransferKey(carried, instruction.home, instruction.micro_batch, boundary)
