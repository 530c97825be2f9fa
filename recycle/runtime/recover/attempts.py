"""Views that end again and again where they began."""

from recycle.control.membership.view import Member, View

MOST = 30
"""Views in a row with the same members before the same iteration, after which there is no hope for the next one. What
comes of a busy machine or a bad cable has passed, or somebody has been declared dead."""


class Attempts:
    """Counts views in a row that ended with the members, and in the iteration, of the one before.

    What fails without anybody's death would do so for ever: a call that NCCL refuses, memory that is not there.
    """

    def __init__(self) -> None:
        self._last: tuple[int, tuple[Member, ...]] | None = None
        self._count = 0

    def note(self, view: View, step: int, cause: str) -> str:
        """A view has ended.

        Args:
            view: which.
            step: the iteration that was under way.
            cause: why.

        Returns:
            Why the run cannot go on; empty if it can.
        """
        this = step, view.members
        self._count = self._count + 1 if this == self._last else 1
        self._last = this
        if self._count < MOST:
            return ""
        return (
            f"iteration {step + 1} was begun {self._count} times by the same servers, and never made: {cause}; "
            "resume from a checkpoint when that is mended"
        )
