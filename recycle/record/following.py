"""Following a run that is going on: what its processes have written since one last looked."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from recycle.errors import PlanFileError, UserError
from recycle.files import LONGEST_LINE
from recycle.record.reading import SPAN, decode_line
from recycle.record.recording import Alignment, Line

PIECE = 1 << 20
"""Bytes of a file that one look reads, and the rest of the line in which they end."""

BEGIN = 512
"""Bytes by which a recording is known: the process that writes it is among them."""


class OtherRunError(PlanFileError):
    """The folder now has another run, or none yet: one begins there, or the folder is a link that leads elsewhere."""


class RecordingFollower:
    """Reads the recordings of a run as they grow; none of it twice, and all of it, whatever one look cannot read.

    A look reads a piece of each file, so that a run of days takes many, and little memory. Of instructions, which are
    most of a recording, the last piece of a file has what it had when it was first read; older ones are left out.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard = 0.0
        """When something was last written, in seconds since 1970; 0 for never; back with a clock that is set back."""
        self._newest = 0.0
        self._is_behind = False
        self._read: dict[Path, int] = {}
        self._identity: dict[Path, tuple[int, int]] = {}
        self._begins: dict[Path, bytes] = {}
        zeros: dict[str, float] = {}
        self._alignments: dict[Path, Alignment] = defaultdict(lambda: Alignment(zeros))
        self._decoder = msgspec.json.Decoder[Line](Line)
        self._kept: list[Line] = []

    def look(self) -> Iterator[Line]:
        """The lines that have come; of each file in its order. A line that is still being written comes later.

        Raises:
            UserError: a recording cannot be read. The next look begins where this one did.
            PlanFileError: it is none of this version; likewise.
            OtherRunError: another run has taken the folder.
        """
        for lines in self.pieces():
            yield from lines

    def pieces(self) -> Iterator[Sequence[Line]]:
        """The same, a piece of every file at a time.

        Raises:
            UserError: as ``look``.
            PlanFileError: likewise.
            OtherRunError: likewise.
        """
        self._is_behind, self._newest = True, 0.0
        while self._is_behind:
            yield self._piece()

    def _piece(self) -> Sequence[Line]:
        failed: UserError | None = None
        self._is_behind = False
        for file in self._files():
            try:
                self._kept += self._lines(file)
            except OtherRunError:
                raise
            except UserError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        lines, self._kept = self._kept, []
        return lines

    def _files(self) -> list[Path]:
        events = self.folder / "events"
        try:
            try:
                files = sorted(each for each in events.iterdir() if each.suffix == ".jsonl")
            except FileNotFoundError:
                files = []
                if self._read:
                    self.folder.stat()
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error
        gone = self._read.keys() - set(files)
        if gone:
            raise OtherRunError(f"{min(gone)}: is gone; another run begins here")
        return files

    def _lines(self, file: Path) -> list[Line]:
        if not file.is_file():
            return []
        start = self._read.get(file, 0)
        try:
            with file.open("rb") as recording:
                status = os.fstat(recording.fileno())
                begin = recording.read(BEGIN)
                recording.seek(start)
                content = recording.read(PIECE)
                if len(content) == PIECE:
                    content += recording.readline(LONGEST_LINE)
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from error
        identity = (status.st_dev, status.st_ino)
        known = self._begins.get(file, b"")
        is_same = self._identity.setdefault(file, identity) == identity and begin.startswith(known)
        if status.st_size < start or not is_same:
            raise OtherRunError(f"{file}: another run has begun here")
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) > LONGEST_LINE:
            raise PlanFileError(f"{file}: behind byte {start}: a line of {LONGEST_LINE} bytes or more")
        texts = whole.splitlines()
        if status.st_size - start - len(whole) > PIECE:
            texts = [text for text in texts if not text.startswith(SPAN)]
        try:
            lines = [self._alignments[file].align(decode_line(text, self._decoder)) for text in texts]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PlanFileError) as error:
            raise PlanFileError(f"{file}: behind byte {start}: {error}") from error
        # What is kept is noted as read, and not what was only tried.
        self._read[file] = start + len(whole)
        self._begins[file] = begin[: self._read[file]]
        self._is_behind = self._is_behind or (bool(whole) and len(content) >= PIECE)
        if whole:
            self.heard = self._newest = max(self._newest, status.st_mtime)
        return lines
