"""The emulated stage: it sleeps its planned durations, while all messages are real and are checked on arrival.

Every server of a cluster can so be a process of one small machine, and the wall clock shows whether a plan holds in
the presence of real messages.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch

from recycle.holding import costs_on
from recycle.job import Job, Server
from recycle.runtime.execute.stage import Held, MicroBatch, Redo, TensorSpec
from recycle.runtime.net.network import Network, Reduction
from recycle.runtime.net.peers import chunk_peers
from recycle.runtime.step.gradient_norm import GradientNorm, Speculation

# A sleep ends late by a tenth of a millisecond, and a process that shares its core is late by more. Such delays are
# the emulation's and not the plan's, so an instruction that follows at once is timed from when the last should have
# ended.
TOLERANCE = 0.0015


class Sleeper:
    """Sleeps durations back to back without adding up how late each sleep ends."""

    def __init__(self) -> None:
        self._end = 0.0
        self._sleeps = 0
        self._late = 0.0

    def restart(self) -> None:
        """Forget how late sleeps ended so far."""
        self._sleeps = 0
        self._late = 0.0

    @property
    def mean_oversleep(self) -> float:
        """Mean time by which a sleep ended late, in seconds."""
        return self._late / self._sleeps if self._sleeps else 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep so long, counted from the end of the sleep before if that ended just now."""
        now = time.monotonic()
        start = self._end if now - self._end < TOLERANCE else now
        self._end = start + seconds
        if self._end <= now:
            return
        time.sleep(self._end - now)
        self._sleeps += 1
        self._late += time.monotonic() - self._end


class EmulatedStage:
    """A stage whose compute takes as long as its job says.

    Args:
        job: the planned durations.
        server: on which it is; its speed counts.
        number: which stage it is.
        slot: seconds for one unit of the job's time.
        sleeper: shared with the server's other stages and its update, so that one follows the other without a gap.
        size: numbers in a message, at least 4.
    """

    cannot_split = ""

    def __init__(self, job: Job, server: Server, number: int, slot: float, sleeper: Sleeper, size: int = 1024) -> None:
        spec = TensorSpec((size,), torch.float64)
        self.input = spec if number > 0 else None
        self.output = spec if number < len(job.stages) - 1 else None
        self._size = size
        self._number = number
        self._cost = costs_on(job, server)[number]
        self._slot = slot
        self._sleeper = sleeper
        self._held: set[MicroBatch] = set()
        self._owed: set[MicroBatch] = set()

    def forward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Sleep F."""
        self._require(received, micro_batch, self._number - 1, self.input)
        assert micro_batch not in self._held, f"{micro_batch} comes a second time"
        self._held.add(micro_batch)
        self._sleeper.sleep(self._cost.forward * self._slot)
        return self._message(micro_batch) if self.output else None

    def evaluate(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Sleep F."""
        self._require(received, micro_batch, self._number - 1, self.input)
        self._sleeper.sleep(self._cost.forward * self._slot)
        return self._message(micro_batch) if self.output else None

    def input_gradient(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Sleep I."""
        return self._return(micro_batch, received, self._cost.input_gradient)

    def weight_gradient(self, micro_batch: MicroBatch) -> None:
        """Sleep W."""
        self._owed.remove(micro_batch)
        self._sleeper.sleep(self._cost.weight_gradient * self._slot)

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Sleep I and W."""
        message = self._return(micro_batch, received, self._cost.input_gradient + self._cost.weight_gradient)
        self._owed.remove(micro_batch)
        return message

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """None: there is nothing to train."""
        return ()

    def take_losses(self) -> Mapping[MicroBatch, float]:
        """None: there is nothing to learn."""
        return {}

    def held(self) -> Held:
        """Micro-batches between F and I, and between I and W."""
        return Held(len(self._held), len(self._owed))

    def drop(self) -> None:
        """Forget all micro-batches."""
        self._held.clear()
        self._owed.clear()

    def _return(self, micro_batch: MicroBatch, received: torch.Tensor | None, cost: int) -> torch.Tensor | None:
        self._require(received, micro_batch, self._number + 1, self.output)
        self._held.remove(micro_batch)
        self._owed.add(micro_batch)
        self._sleeper.sleep(cost * self._slot)
        return self._message(micro_batch) if self.input else None

    def _message(self, micro_batch: MicroBatch) -> torch.Tensor:
        message = torch.zeros(self._size, dtype=torch.float64)
        message[:4] = torch.tensor([self._number, *micro_batch], dtype=torch.float64)
        return message

    def _require(
        self, received: torch.Tensor | None, micro_batch: MicroBatch, sender: int, spec: TensorSpec | None
    ) -> None:
        if spec is None:
            assert received is None, f"a message for {micro_batch} where none is due"
            return
        assert received is not None, f"no message for {micro_batch}"
        expected = [sender, *micro_batch]
        assert received[:4].tolist() == expected, f"expected {expected}, received {received[:4].tolist()}"


class _Meeting(NamedTuple):
    """A reduction of one chunk that is under way.

    Attributes:
        expected: how many servers are in it.
        there: how many are there.
        under_way: what counts them.
    """

    expected: int
    there: torch.Tensor
    under_way: Reduction

    def wait(self) -> None:
        """Wait for all."""
        self.under_way.wait()
        count = self.there.item()
        assert count == self.expected, f"{count:g} of {self.expected} peers were in the reduction"


class EmulatedUpdate:
    """Reduction and optimizer step of all stages of a server, as long as the job says; peers really meet in them.

    Args:
        job: the planned durations.
        staggered: whether stages step on their own; otherwise all wait for each other first.
        network: of the server.
        slot: seconds for one unit of the job's time.
        sleeper: the stages'.
        norm: of an iteration's whole gradient, of which 1 is allowed; None if nobody asks for it.

    Attributes:
        steps: how many steps were made and not taken back.
        confirms: see StageUpdate.
        speculation: what the past says about guesses; None if nobody asks for norms.
    """

    def __init__(
        self,
        job: Job,
        staggered: bool,
        network: Network,
        slot: float,
        sleeper: Sleeper,
        norm: Callable[[int], float] | None = None,
    ) -> None:
        self._staggered = staggered
        costs = costs_on(job, network.server)
        self.confirms = False
        self._reduction = {chunk: each.reduction * slot for chunk, each in costs.items()}
        self._optimizer = {chunk: each.optimizer * slot for chunk, each in costs.items()}
        self._stages = tuple(costs)
        self._peers = chunk_peers(job, network)
        self._network = network
        self._sleeper = sleeper
        self._norm = norm
        self._pending = False
        self._meetings: dict[int, _Meeting] = {}
        # Of the iteration: whether a chunk was reduced, and whether each is stepped on its own.
        self._begun = self._apart = False
        self._gradient_norm: GradientNorm | None = None
        if norm is not None:
            self._gradient_norm = GradientNorm(self._stages, len(job.stages), 1.0, staggered)
            self._gradient_norm.connect(network, 0)
        self.steps = 0

    @property
    def speculation(self) -> Speculation | None:
        """See above."""
        return self._gradient_norm.speculation if self._gradient_norm else None

    def collect(self) -> None:
        """Nothing: there are no gradients."""

    def validate(self) -> Redo:
        """Sleep another optimizer step, if the last one was not right."""
        if not self._pending:
            return Redo.NOTHING
        assert self._gradient_norm is not None
        self._pending = False
        if self._gradient_norm.hear(guessed=True).as_guessed:
            return Redo.NOTHING
        for chunk in list(self._meetings):
            self._meetings.pop(chunk).wait()
        self._sleeper.sleep(sum(self._optimizer.values()))
        return Redo.THIS

    def start_reduction(self, chunk: int) -> None:
        """Tell the peers that this server is there."""
        peers = next(each for each in self._peers if chunk in each.chunks)
        count = torch.ones(1)
        self._meetings[chunk] = _Meeting(len(peers.servers), count, peers.group.start_sum(count))

    def reduce(self, chunk: int, *, last: bool) -> None:
        """Meet the peers, and sleep the reduction."""
        if not self._begun:
            if self._gradient_norm is None and not self._staggered:
                self._network.barrier()
            self._apart = self._gradient_norm is None or self._gradient_norm.guesses
        self._begun = not last
        if chunk not in self._meetings:
            self.start_reduction(chunk)
        self._meetings.pop(chunk).wait()
        self._sleeper.sleep(self._reduction[chunk])
        if last:
            self._tell_norm()

    def _tell_norm(self) -> None:
        if self._gradient_norm is not None and self._norm is not None:
            self._pending = self._gradient_norm.guesses
            # The first stage has all of it.
            norm = self._norm(self.steps)
            self._gradient_norm.tell(self.steps, {0: [0.0 if each else norm**2 for each in self._stages]}, fits=True)
            if not self._pending:
                self._gradient_norm.hear(guessed=False)

    def step(self, chunk: int, *, last: bool) -> Redo:
        """Sleep the chunk's optimizer step, or with the last all steps."""
        if self._apart:
            self._sleeper.sleep(self._optimizer[chunk])
        elif last:
            self._sleeper.sleep(sum(self._optimizer.values()))
        self.steps += last
        return Redo.NOTHING
