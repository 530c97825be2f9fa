"""What all stages must agree on after each of them has reduced its gradients: the norm of the whole gradient."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import msgspec
import torch

from recycle.runtime.net.network import Network, Reduction

# After so many iterations in a row whose gradient was used as it was, the next one is guessed to be so as well. One
# wrong guess in so many costs about what waiting costs in all the others.
CALM = 8


def factor_of(norm: float, clip: float | None) -> float:
    """By what a gradient is multiplied before the step; 0 if there is none, because the gradient is not finite."""
    if not math.isfinite(norm):
        return 0.0
    # As torch and Megatron have it, to the last digit.
    return 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))


class Speculation(msgspec.Struct, frozen=True):
    """What recent norms say about the next one.

    It never changes what is trained, only how fast. In every view it starts anew, from the last norm alone: who comes
    new knows no other.

    Attributes:
        calm: how many gradients in a row were used as they were; at the start, as many as are asked for.
        right: how many guesses were right.
        wrong: how many were wrong.
        waits: how many iterations waited for the norm.
    """

    calm: int = CALM
    right: int = 0
    wrong: int = 0
    waits: int = 0

    @property
    def guesses(self) -> bool:
        """Whether the next gradient is used as it is before its norm is known."""
        return self.calm >= CALM

    @property
    def hit_rate(self) -> float | None:
        """The share of guesses that were right; None if there was none."""
        guesses = self.right + self.wrong
        return self.right / guesses if guesses else None

    def anew(self, factor: float) -> Self:
        """What is known at the start of a view.

        Args:
            factor: by which the last gradient before it had to be multiplied.
        """
        return msgspec.structs.replace(self, calm=CALM if factor == 1.0 else 0)

    def __str__(self) -> str:
        rate = "" if self.hit_rate is None else f", {self.hit_rate:.1%} of them rightly"
        return f"guessed the norm in {self.right + self.wrong} iterations{rate}, and waited for it in {self.waits}"

    def after(self, factor: float, guessed: bool) -> Self:
        """What is known when an iteration's factor is.

        Args:
            factor: by which its gradient had to be multiplied.
            guessed: whether it was stepped before that was known.
        """
        unchanged = factor == 1.0
        return type(self)(
            self.calm + 1 if unchanged else 0,
            self.right + (guessed and unchanged),
            self.wrong + (guessed and not unchanged),
            self.waits + (not guessed),
        )


# What stands where a server knows nothing; squares are never below zero.
UNKNOWN = -1.0


class GradientVerdict(NamedTuple):
    """What all servers say of an iteration's gradient.

    Attributes:
        norm: of the whole gradient.
        factor: by which it is multiplied before the step; 0 if no step is made with it.
        fits: whether every stage has the sum at all; if not, the iteration must be made again.
    """

    norm: float
    factor: float
    fits: bool

    @property
    def as_guessed(self) -> bool:
        """Whether a step with the gradient as it was is right."""
        return self.fits and self.factor == 1.0


class LastGradient(NamedTuple):
    """What the servers of a new view know of the last iteration of the view before.

    Attributes:
        verdict: on it; None where nobody knows that of all stages.
        guessed: whether anybody has stepped after it by a guess that is still to be judged.
    """

    verdict: GradientVerdict | None
    guessed: bool


class GradientNorm:
    """Puts the norm together from the stages' parts, while they go on if it can be guessed.

    Every part comes from any of the peers that have it, for they have the same, and the greatest of what is known and
    unknown is what is known. So the norm does not depend on which servers live, to the bit.

    Args:
        stages: of this server.
        count: of all stages.
        clip: the largest norm that the gradient may have; None for no limit.
        eager: whether to guess at all.
        shards: into how many parts the gradient of each stage is cut, of which each peer may have some only.

    Attributes:
        speculation: what the past says about guesses.
        norm: of the last gradient of which it is known.
    """

    def __init__(self, stages: Sequence[int], count: int, clip: float | None, eager: bool, shards: int = 1) -> None:
        self._stages = list(stages)
        self._count = count
        self._shards = shards
        self._clip = clip
        self._eager = eager
        self._asked: tuple[int, torch.Tensor, Reduction] | None = None
        self._known: dict[int, torch.Tensor] = {}
        self.speculation = Speculation()
        self.norm = math.nan

    def connect(self, network: Network, step: int, guessed: bool = False) -> LastGradient:
        """Ask the servers of a view from now on, and at once about the last iteration of the view before.

        Some may have heard of it and others not; and who comes new must know it as well, to tell others later.

        Args:
            network: of the server.
            step: the first iteration of this view.
            guessed: whether this server has stepped after the iteration before it, and not heard yet if it was right.

        Raises:
            ConnectionLost: somebody is gone.
        """
        self._group = network.group("norm", network.view.servers, on_host=True)
        self._ranks = network.ranks
        known = self._known.get(step - 1, self._nothing())
        asked = torch.cat([known, torch.tensor([guessed], dtype=known.dtype)])
        self._group.maximum(asked)
        # Where an iteration was broken off, one plane may have heard what another has not.
        network.ranks.maximum(asked)
        known, has_guessed = asked[:-1].clone(), bool(asked[-1])
        self._asked = None
        self._known = {step - 1: known}
        verdict = None if UNKNOWN in known else self._judge(known)
        if verdict is not None:
            self.norm = verdict.norm
        self.speculation = self.speculation.anew(1.0 if verdict is None else verdict.factor)
        return LastGradient(verdict, has_guessed)

    def forget(self, step: int) -> None:
        """The iteration's step was taken back: it may be made in another way."""
        self._known.pop(step, None)

    @property
    def guesses(self) -> bool:
        """Whether the next iteration is stepped before its norm is known."""
        return self._eager and self.speculation.guesses

    def tell(self, step: int, squares: Mapping[int, Sequence[float]], fits: bool) -> None:
        """Tell the others this server's part.

        Args:
            step: the iteration.
            squares: of each shard that is here, the square of each stage's norm, or this rank's part of it; anything
                but a finite number if its gradient is not finite.
            fits: whether the stages have their sums, as far as this rank knows.
        """
        assert self._asked is None, "the verdict on the last gradient was not asked for"
        known = self._nothing()
        # The greatest of some values is not defined where one is no number.
        finite = [square if math.isfinite(square) else math.inf for each in squares.values() for square in each]
        part = torch.tensor([*finite, not fits], dtype=torch.float64)
        self._ranks.sum(part)
        parts = known[:-1].view(self._shards, self._count)
        for shard, square in zip(squares, part[:-1].view(len(squares), -1), strict=True):
            parts[shard, self._stages] = square
        known[-1] = float(part[-1] > 0)
        # Where somebody dies meanwhile, what is under way ends as anything; and then this iteration is the last but
        # one that anybody can ask for.
        self._known = {each: self._known[each] for each in self._known if each >= step - 1} | {step: known.clone()}
        self._asked = step, known, self._group.start_maximum(known)

    def hear(self, guessed: bool) -> GradientVerdict:
        """Wait for the parts of all stages.

        Args:
            guessed: whether the step was already made.

        Raises:
            ConnectionLost: somebody is gone.
        """
        assert self._asked is not None, "no part was told"
        step, known, transfer = self._asked
        transfer.wait()
        self._asked = None
        self._known[step] = known
        verdict = self._judge(known)
        self.norm = verdict.norm
        if verdict.fits:
            self.speculation = self.speculation.after(verdict.factor, guessed)
        return verdict

    def _nothing(self) -> torch.Tensor:
        return torch.full((self._shards * self._count + 1,), UNKNOWN, dtype=torch.float64)

    def _judge(self, known: torch.Tensor) -> GradientVerdict:
        *squares, unfit = known.tolist()
        assert UNKNOWN not in squares, f"some parts were not told: {squares}"
        norm = math.sqrt(math.fsum(squares))
        factor = factor_of(norm, self._clip)
        # Where the gradient of any stage is not finite, no sum of another one matters.
        return GradientVerdict(norm, factor, unfit == 0.0 or factor == 0.0)
