"""How a run has ended, as far as the store tells it to those who do not train."""

from recycle.control.board import Board


def was_kept(board: Board) -> bool | None:
    """Whether all who were left have reached the end of the run; None as long as they are on their way.

    Args:
        board: of the run.

    Raises:
        StoreLost: there is no store.
    """
    verdict = board.verdicts.newest()
    if verdict is None or verdict.stop:
        return False
    if board.end.is_reached(verdict.view):
        return True
    return None if any(board.failures.death(each) is None for each in verdict.view.members) else False
