"""Stepping before the norm of the whole gradient is known: what is guessed, and when it is better to wait.

The norm is known only when every stage has reduced its gradients, and waiting for it is a barrier. A guess needs none,
but a wrong one costs an iteration. So nobody guesses for a while after a guess was wrong or would have been.

All servers see the same norms in the same order, and so decide the same without asking each other.
"""

import math
from typing import Self

import msgspec

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
