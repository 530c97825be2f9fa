"""Reduction and optimizer step of a server's stages of torch parameters."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from recycle.runtime.errors import NotFinite
from recycle.runtime.execute.stage import Redo
from recycle.runtime.net.network import Network
from recycle.runtime.net.peers import ChunkPeers
from recycle.runtime.step.exact_sums import NOTHING
from recycle.runtime.step.gradient_norm import GradientNorm, GradientVerdict, Speculation
from recycle.runtime.step.gradient_sums import GradientSums
from recycle.runtime.step.listener import StepFeed
from recycle.runtime.step.main_parameters import EVERYTHING, MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.optimizers import require_supported
from recycle.runtime.step.shard_steps import PeerSteps, ShardSteps
from recycle.runtime.step.versions import Versions

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class TorchUpdate:
    """Sum the gradients over the live peers, and step a torch optimizer.

    A stage scales each micro-batch's loss by 1 / M, and 1 / D is applied here, both of the full job; where the loss is
    a sum over tokens, only their number in the whole batch is. So the sum over whichever servers live is the fault-free
    gradient. Megatron applies 1 / D before the sum. Here it comes after: powers of two give the same bits, and the
    rounding of others does not depend on which servers live. Sums of gradients in bfloat16 hardly round at all in
    float32, so that training in bfloat16 is mostly the same to the bit; with exact sums, all training is.

    Where the norm of the whole gradient matters, a staggered stage steps before it is known, if it can be guessed that
    the gradient will be used as it is. ``validate`` finds out, one iteration later; a wrong step is taken back, and
    made again from the gradient, which is kept for that. So every step is in the end the one that would have been made
    by waiting, to the bit.

    A stage is stepped as soon as it is reduced, unless that takes something of the server's others: the norm where it
    is waited for, what is done to all gradients, or shards, which lie across them. Then all are stepped with the last.
    The server is at its next version when all are; a step of some is taken back by ``drop``.

    Args:
        main: the parameters of the server's stages.
        make_optimizer: makes the optimizer of the main parameters.
        pipelines: D of the full job, or the rows of its batch.
        stages: which stages they are.
        count: of all stages of the model.
        method: how gradients become steps.

    Attributes:
        confirms: see StageUpdate; for the iteration that is reduced. All servers have the same.
        feed: tells who listens of every step, when it is surely right.
        shards: those of the optimizer that this server holds; None where it holds all of its state.
        sums: the gradients of this iteration, and those that the last step was made with.

    Raises:
        RunError: nobody knows how to undo a step of this optimizer.
    """

    def __init__(
        self,
        main: MainParameters,
        make_optimizer: MakeOptimizer,
        pipelines: int,
        stages: Sequence[int],
        count: int,
        method: Method = Method(),  # noqa: B008 - immutable
    ) -> None:
        self.main = main
        self.optimizer = make_optimizer(list(main))
        require_supported(self.optimizer)
        self.versions = Versions([*self.main], self.optimizer)
        self.sums = GradientSums(self.main, method.guesses, method.addends)
        self.feed = StepFeed()
        self.shards = None if method.shards is None else ShardSteps(self.main, self.optimizer, method.shards)
        self._steps = self.shards or PeerSteps(self.main, self.optimizer)
        self._method = method
        self._pipelines = pipelines
        self._stages = stages
        self._tokens: Callable[[], int] = lambda: self._pipelines
        shards = 1 if method.shards is None else method.shards.shards
        self._gradient_norm = (
            GradientNorm(stages, count, method.clip, method.guesses, shards) if method.validated else None
        )
        self._keeps = method.keep or method.guesses
        self._verdict: GradientVerdict | None = None
        self._pending = False
        # Of the iteration: what its sums are divided by; whether stages step apart, and whether any has.
        self._divisor: float | None = None
        self._apart = self._stepping = False
        self.confirms = False

    @property
    def speculation(self) -> Speculation | None:
        """What the past says about guesses; None where no step needs the norm."""
        return self._gradient_norm.speculation if self._gradient_norm else None

    @property
    def norm(self) -> float:
        """Of the last gradient of which it is known; no number where nobody looks at it."""
        return self._gradient_norm.norm if self._gradient_norm else math.nan

    def enter(self, network: Network, step: int) -> int:
        """Enter a view: find out whether the last step before it was right, and make it so.

        Args:
            network: of the server.
            step: the version that this server has or will get from a peer: the first iteration.

        Returns:
            The version that it is: one less where the gradient was not fit for the step, or nobody can say so any
            more; all have taken it back.

        Raises:
            ConnectionLost: somebody is gone.
        """
        if self._gradient_norm is None:
            return step
        # Who has another version gets this one from a peer.
        pending = self._pending and self.versions.newest == step
        verdict, guessed = self._gradient_norm.connect(network, step, pending)
        if verdict is None and guessed:
            # All who had heard whether it was right are dead, and keepers have what their stage was after it.
            if pending:
                self.undo()
            return step - 1
        if pending and verdict is not None:
            self._correct(verdict)
        self._pending = False
        return step if verdict is None or verdict.fits else step - 1

    def connect(
        self,
        network: Network,
        peers: Sequence[ChunkPeers] = (),
        after_reduction: Callable[[], None] | None = None,
        tokens: Callable[[], int] | None = None,
    ) -> None:
        """Work over the groups of a view from now on, with gradients of zero.

        Args:
            network: of the server.
            peers: which server holds which of its stages; the network's peers hold all of them if none is named.
            after_reduction: what else is done to all gradients before they are used; None where that is nothing.
            tokens: asked once in an iteration for the number of tokens in the whole batch, where the loss is their sum.
        """
        self._network = network
        self._groups = dict.fromkeys(self._stages, network.peers)
        self._groups |= {chunk: each.group for each in peers for chunk in each.chunks}
        self._steps.connect(network)
        self.sums.connect(network, self._steps.shares)
        self._after_reduction = after_reduction
        if tokens is not None:
            self._tokens = tokens
        self._begin()

    def collect(self) -> None:
        """A micro-batch's gradients, or a part of them, were added."""
        self.sums.collect()

    def start_reduction(self, chunk: int) -> None:
        """See StageUpdate."""
        self.sums.start(self._groups[chunk], self._place(chunk))

    def reduce(self, chunk: int, *, last: bool) -> None:
        """See StageUpdate.

        Raises:
            NotFinite: the sum holds a value that is no finite number, and nobody looks at the norm.
        """
        if self._divisor is None:
            self._divisor = self._start_reducing()
        self.sums.reduce(self._groups[chunk], self._place(chunk), self._divisor)
        if self._apart:
            self._require_finite([chunk])
        if last:
            self._finish_reducing()

    def _start_reducing(self) -> float:
        """By what all sums of an iteration are divided. All come here first, whichever stage they reduce first."""
        if not self._method.staggered and self._gradient_norm is None:
            self._network.barrier()
        alone = self._after_reduction is None and self.shards is None
        guesses = self._gradient_norm is None or self._gradient_norm.guesses
        self._apart = alone and guesses
        # Who waits for the norm hears of it only if all servers have told their parts.
        self.confirms = not guesses
        # Divided by this, the sum over all micro-batches is the gradient of the whole batch.
        return float(max(1, self._tokens()))

    def _finish_reducing(self) -> None:
        """All gradients are reduced: do what takes them together."""
        fits = self.sums.finish()
        if self._after_reduction is not None:
            self._after_reduction()
        if self._gradient_norm is None:
            if not self._apart:
                self._require_finite(self._stages)
            return
        parts = self._steps.parts(self.sums.reduced)
        squares = self.sums.squares(parts, fits, self._network.rank.is_first)
        self._gradient_norm.tell(self.versions.newest, squares, fits)
        self._verdict = None if self._gradient_norm.guesses else self._gradient_norm.hear(guessed=False)

    def _require_finite(self, chunks: Sequence[int]) -> None:
        if self._gradient_norm is None and not all(self.sums.are_finite(self._place(chunk)) for chunk in chunks):
            raise NotFinite(f"the gradient of stage {' and '.join(map(str, chunks))} is not finite")

    def step(self, chunk: int, *, last: bool) -> Redo:
        """See StageUpdate.

        Raises:
            ViewBroken: a peer is gone that has shards which only it was to step.
        """
        which = self._place(chunk) if self._apart else EVERYTHING
        if not last:
            if self._apart:
                self._make(which)
        elif self._verdict is None:
            self._pending = self._gradient_norm is not None
            if self._pending:
                self.feed.guess()
            self._apply(1.0, which)
        elif self._verdict.fits:
            self._apply(self._verdict.factor)
        else:
            self._repeat()
            return Redo.THIS
        return Redo.NOTHING

    def validate(self) -> Redo:
        """Find out whether the last step was right; if not, make it so, and forget all gradients since."""
        if not self._pending:
            return Redo.NOTHING
        assert self._gradient_norm is not None
        return self._correct(self._gradient_norm.hear(guessed=True))

    def parts_of(self, stage: int) -> tuple[torch.Tensor, ...]:
        """What the step that is being told of is made from at one of the stages, by its place among the server's."""
        return self.sums.parts(self.main.of_stage(stage))

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """Make the step of a peer whose listener got these."""
        *sums, steps = parts
        self.sums.take(sums)
        self._apply(1.0 if bool(steps) else 0.0)

    def undo(self) -> None:
        """Take the last step back."""
        self._pending = False
        self.feed.undone()
        self.versions.undo()
        self._steps.undo()
        self.main.copy_back()
        if self._gradient_norm is not None:
            self._gradient_norm.forget(self.versions.newest)

    def _place(self, chunk: int) -> slice:
        """Which of the main parameters are those of a stage."""
        return self.main.of_stage(self._stages.index(chunk))

    def _correct(self, verdict: GradientVerdict) -> Redo:
        """Make the last step what it should have been.

        Raises:
            ConnectionLost: a peer is gone. The step is still pending, and the next view corrects it.
        """
        if verdict.as_guessed:
            self._pending = False
            if self.feed.heard_before:
                self._tell(1.0)
            return Redo.NOTHING
        # All who take part in them have come to the same verdict, and forget them too.
        self.sums.settle()
        self._pending = False
        if not self.feed.heard_before:
            self.feed.undone()
        self.versions.undo()
        self.main.copy_back()
        if not verdict.fits:
            self._repeat()
            return Redo.LAST
        self.sums.use_reduced()
        self._apply(verdict.factor)
        return Redo.THIS

    def _repeat(self) -> None:
        """Begin the iteration again, with bounds that its addends fit."""
        assert self._gradient_norm is not None
        self._gradient_norm.forget(self.versions.newest)
        self._begin(self.sums.bounds)

    def adopt(self, step: int, *, whole: bool = False) -> None:
        """The main parameters and the optimizer's state were replaced by those of a step.

        Args:
            step: which.
            whole: whether all shards of the optimizer are in it, where it is in shards.
        """
        self._pending = False
        self.versions.adopt(step)
        self._steps.adopt(whole=whole)
        self.main.copy_back()
        self._begin()

    def drop(self) -> None:
        """Forget all gradients of an iteration that was not finished, and a step that lacks its peers' part."""
        if self.versions.take_back():
            self._steps.undo()
            self.main.copy_back()
        self._begin()

    def _tell(self, factor: float) -> None:
        """Tell of a step with the reduced gradient as it is, or of one that is only counted, if the factor is 0."""
        if self.feed.listener is not None:
            self.feed.listener.stepping((*self.sums.parts(), torch.tensor([factor != 0])))

    def _begin_step(self) -> None:
        """Keep what a step is about to change, unless some stages have stepped."""
        if not self._stepping:
            self._steps.begin()
            if self._keeps:
                self.versions.keep()
        self._stepping = True

    def _make(self, which: slice) -> None:
        """Step some parameters."""
        if self._method.prepare is not None and not self._stepping:
            self._method.prepare(self.optimizer, self.versions.newest)
        self._begin_step()
        self._steps.make(which)

    def _apply(self, factor: float, which: slice = EVERYTHING) -> None:
        """Make a step with the reduced gradient times a factor, or what is left of it; with 0, only count it."""
        if factor not in (0.0, 1.0):
            self.sums.scale(factor)
        if not self._pending:
            self._tell(factor)
        if not factor:
            self._begin_step()
        else:
            self._make(which)
            for parameter, bound in zip(self.main, self.sums.bounds, strict=False):
                # With the optimizer's state, a parameter's bound gets into every version, checkpoint and copy.
                self.optimizer.state[parameter]["bound"] = torch.tensor(bound)
        self.versions.advance()
        self._begin()

    def _begin(self, bounds: list[int] | None = None) -> None:
        """Begin an iteration with gradients of zero.

        Args:
            bounds: of the addends; those of the present version if None.
        """
        self._verdict = self._divisor = None
        self._apart = self._stepping = False
        if self._method.addends and not bounds:
            bounds = [int(self.optimizer.state.get(each, {}).get("bound", NOTHING)) for each in self.main]
        self.sums.begin(bounds or [])
