"""What the launcher tells of a run: to its recording, and to who watches the run."""

from collections.abc import Callable
from pathlib import Path

from recycle.control.membership.participant import Participant
from recycle.files import own_folder, write_whole
from recycle.job import Server
from recycle.record.best_effort import BestEffort
from recycle.record.recording import InstantLine
from recycle.record.reporting import Event, EventFile
from recycle.runtime.launch.process.messages import FailureMessage
from recycle.runtime.recover.view_reports import now


class News:
    """The launcher's part in the recordings of a run.

    Args:
        folder: of the run.
        title: what the launcher's recording is called.
        watch: called with every event.
    """

    def __init__(self, folder: Path, title: str, watch: Callable[[Event], None]) -> None:
        self._watch = watch
        self._folder = folder / "failures"
        self._failures = BestEffort(str(self._folder), self.warn)
        self._file = EventFile(folder / "events", "launcher", title, self.warn)

    def tell(self, event: Event) -> None:
        """Record something, and show it."""
        self._file.write(event)
        self._watch(event)

    def remark(self, text: str, server: Server | None = None) -> None:
        """Tell, as a warning, of something in the run, or in one server of it."""
        self.tell(InstantLine("warning", now(), None if server is None else str(server), text))

    def tell_failure(self, participant: Participant, message: FailureMessage) -> None:
        """A process has failed: tell of it, and write down where that was."""
        server, where = participant.member.server, ""
        path = self._folder / f"{participant}.txt"
        with self._failures:
            own_folder(self._folder)
            write_whole(path, message.detail.encode(), private=True)
            where = f"; {path} says where"
        text = f"{participant.rank.of(server)} failed: {message.summary}{where}"
        self.tell(InstantLine("warning", now(), str(server), text))

    def warn(self, text: str) -> None:
        """Show what cannot be recorded: that something is not."""
        self._watch(InstantLine("warning", now(), None, text))

    def close(self) -> None:
        """Record no more."""
        self._file.close()
