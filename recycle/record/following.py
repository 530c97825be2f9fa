"""Following a run that is going on: what its processes have written since one last looked."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from recycle.errors import PlanFileError, UserError
from recycle.record.recording import Alignment, Line


class RecordingFollower:
    """Reads the recordings of a run as they grow; none of it twice.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}
        self._alignments: dict[Path, Alignment] = defaultdict(Alignment)
        self._decoder = msgspec.json.Decoder(Line)

    def look(self) -> Iterator[Line]:
        """The lines that have come; of each file in its order. A line that is still being written comes later.

        Raises:
            UserError: a recording cannot be read.
            PlanFileError: it is none of this version, or another run has taken the folder.
        """
        for file in sorted((self.folder / "events").glob("*.jsonl")):
            if not file.is_file():
                continue
            start = self._read.get(file, 0)
            try:
                if file.stat().st_size < start:
                    raise PlanFileError(f"{file}: it has become shorter: another run has begun here; watch that one")
                with file.open("rb") as recording:
                    recording.seek(start)
                    content = recording.read()
            except OSError as error:
                raise UserError(f"{file}: cannot be read: {error.strerror}") from error
            whole = content[: content.rfind(b"\n") + 1]
            self._read[file] = start + len(whole)
            try:
                align = self._alignments[file].align
                yield from (align(self._decoder.decode(line)) for line in whole.splitlines())
            except (msgspec.DecodeError, RecursionError) as error:
                raise PlanFileError(f"{file}: behind byte {start}: {error}") from error
