"""What the first process tells all others at the start, and every one that comes back needs."""

from collections.abc import Mapping

from recycle.control.board import keys
from recycle.control.board.parts import BoardPart


class NoteBoard(BoardPart):
    """The notes of a run. All members know them, so each can put back what a stranger has taken away.

    A note may be large. So members look only whether one is wanted.
    """

    def tell(self, name: str, content: bytes) -> None:
        """Write a note."""
        self._sealed.write(keys.note(name), content)

    def read(self, name: str, timeout: float = 0.0) -> bytes | None:
        """A note, as soon as it is there; None if it is not after some seconds, for which the connection is busy."""
        return self._sealed.read(keys.note(name), bytes, timeout)

    def ask(self) -> None:
        """Have members put their notes back."""
        self._sealed.write(keys.WANTED, True)

    def put_back(self, notes: Mapping[str, bytes]) -> None:
        """Write the notes that are missing, as somebody has asked.

        Args:
            notes: all that this member knows, by name.
        """
        if notes:
            self._sealed.write_all_once({keys.note(name): content for name, content in notes.items()})
            self._sealed.plain.delete(keys.WANTED)
