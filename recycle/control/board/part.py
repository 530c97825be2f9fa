"""What all parts of the board have: the store that they read and write."""

from recycle.control.store.sealed_store import SealedStore


class BoardPart:
    """What members read and write of one subject.

    Args:
        sealed: the store.
    """

    def __init__(self, sealed: SealedStore) -> None:
        self._sealed = sealed
