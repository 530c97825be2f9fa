"""Following a run that is going on: what its processes have written since one last looked."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from recycle.errors import PlanFileError, UserError
from recycle.record.recording import Alignment, Line


class OtherRunError(PlanFileError):
    """The folder now has another run: it was begun anew there, or the folder is a link that leads elsewhere."""


class RecordingFollower:
    """Reads the recordings of a run as they grow; none of it twice, and all of it, whatever one look cannot read.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard = 0.0
        """When something was last written, in seconds since 1970; 0 for never."""
        self._read: dict[Path, int] = {}
        self._identity: dict[Path, tuple[int, int]] = {}
        self._alignments: dict[Path, Alignment] = defaultdict(Alignment)
        self._decoder = msgspec.json.Decoder(Line)
        self._kept: list[Line] = []

    def look(self) -> Sequence[Line]:
        """The lines that have come; of each file in its order. A line that is still being written comes later.

        Raises:
            UserError: a recording cannot be read. The next look begins where this one did.
            PlanFileError: it is none of this version; likewise.
            OtherRunError: another run has taken the folder.
        """
        failed: UserError | None = None
        for file in sorted((self.folder / "events").glob("*.jsonl")):
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

    def _lines(self, file: Path) -> list[Line]:
        if not file.is_file():
            return []
        start = self._read.get(file, 0)
        try:
            with file.open("rb") as recording:
                status = file.stat()
                recording.seek(start)
                content = recording.read()
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from error
        identity = (status.st_dev, status.st_ino)
        if status.st_size < start or self._identity.setdefault(file, identity) != identity:
            raise OtherRunError(f"{file}: another run has begun here")
        whole = content[: content.rfind(b"\n") + 1]
        try:
            decoded = [self._decoder.decode(line) for line in whole.splitlines()]
            lines = [self._alignments[file].align(line) for line in decoded]
        except (msgspec.DecodeError, RecursionError) as error:
            raise PlanFileError(f"{file}: behind byte {start}: {error}") from error
        # What is kept is noted as read, and not what was only tried.
        self._read[file] = start + len(whole)
        self.heard = max(self.heard, status.st_mtime)
        return lines
