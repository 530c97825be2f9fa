"""What all stages must agree on after each of them has reduced its gradients: the norm of the whole gradient."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from recycle.runtime.net.network import Network, Reduction
from recycle.runtime.step.speculation import Speculation, factor_of

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


class Heard(NamedTuple):
    """What the servers of a new view know of the last iteration of the view before.

    Attributes:
        verdict: on it; None where nobody knows that of all stages.
        guessed: whether anybody has stepped after it by a guess that is still to be judged.
    """

    verdict: GradientVerdict | None
    guessed: bool


class Validation:
    """Puts the norm together from the stages' parts, while they go on if it can be guessed.

    Every stage's part comes from any of its peers, for they have the same, and the greatest of what is known and
    unknown is what is known. So the norm does not depend on who is alive, to the bit.

    Args:
        stages: of this server.
        count: of all stages.
        clip: the largest norm that the gradient may have; None for no limit.
        eager: whether to guess at all.

    Attributes:
        speculation: what the past says about guesses.
        norm: of the last gradient of which it is known.
    """

    def __init__(self, stages: Sequence[int], count: int, clip: float | None, eager: bool) -> None:
        self._stages = list(stages)
        self._count = count
        self._clip = clip
        self._eager = eager
        self._asked: tuple[int, torch.Tensor, Reduction] | None = None
        self._known: dict[int, torch.Tensor] = {}
        self.speculation = Speculation()
        self.norm = math.nan

    def connect(self, network: Network, step: int, guessed: bool = False) -> Heard:
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
        return Heard(verdict, has_guessed)

    def forget(self, step: int) -> None:
        """The iteration's step was taken back: it may be made in another way."""
        self._known.pop(step, None)

    @property
    def guesses(self) -> bool:
        """Whether the next iteration is stepped before its norm is known."""
        return self._eager and self.speculation.guesses

    def tell(self, step: int, squares: Sequence[float], fits: bool) -> None:
        """Tell the others this server's part.

        Args:
            step: the iteration.
            squares: the square of each stage's norm, or this rank's part of it; anything but a finite number if its
                gradient is not finite.
            fits: whether the stages have their sums, as far as this rank knows.
        """
        assert self._asked is None, "the verdict on the last gradient was not asked for"
        known = self._nothing()
        # The greatest of some values is not defined where one is no number.
        finite = [square if math.isfinite(square) else math.inf for square in squares]
        part = torch.tensor([*finite, not fits], dtype=torch.float64)
        self._ranks.sum(part)
        known[self._stages] = part[:-1]
        known[self._count] = float(part[-1] > 0)
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
        return torch.full((self._count + 1,), UNKNOWN, dtype=torch.float64)

    def _judge(self, known: torch.Tensor) -> GradientVerdict:
        *squares, unfit = known.tolist()
        assert UNKNOWN not in squares, f"nobody told the parts of all stages: {squares}"
        norm = math.sqrt(math.fsum(squares))
        factor = factor_of(norm, self._clip)
        # Where the gradient of any stage is not finite, no sum of another one matters.
        return GradientVerdict(norm, factor, unfit == 0.0 or factor == 0.0)
