"""The keeper of the launcher's host, as the launcher has it."""

from collections.abc import Iterator

from recycle.runtime.launch.meet.keepers import dismiss, hold
from recycle.runtime.launch.process.fork_server import ForkEvent, ForkServer
from recycle.runtime.launch.supervise.setting import Setting
from recycle.state.channel import Channel
from recycle.state.directory import KeeperDirectory


class HostKeeper:
    """The launcher's part in its host's keeper.

    Args:
        token: the run's.
        fork_server: starts it, where this process has to.

    Attributes:
        directory: of the run's keepers; None where it has none.
    """

    def __init__(self, token: str, fork_server: ForkServer) -> None:
        self.directory: KeeperDirectory | None = None
        self._token = token
        self._fork_server = fork_server
        self._limit = 0
        self._channel: Channel | None = None
        self._is_found = False

    def open(self, setting: Setting) -> Iterator[str]:
        """Have one, if the run has any; once all processes have come.

        Args:
            setting: of the run.

        Yields:
            What the user should know of it.

        Raises:
            UserError: a host is missing, or has not got the memory. All who came are told.
        """
        keeping = setting.keeping
        if keeping is None:
            return
        self.directory = directory = setting.direct_keepers(keeping)
        self._limit = keeping.limit(directory, setting.host)
        if keeping.slot.is_taken(directory, setting.host):
            self._fork_server.start_keeper(self._token, self._limit, keeping.within)
        else:
            self._is_found = True
            self._channel = hold(self._token, self._limit)
        yield keeping.describe(directory)

    def learn(self, event: ForkEvent) -> Iterator[str]:
        """It has started, or was refused; gives what the user should know."""
        if event.kind == "started":
            self._channel = hold(self._token, self._limit)
        else:
            yield f"no keeper can be started: {event.reason}; the run goes on without copies in this host's memory"

    def look(self) -> Iterator[str]:
        """Whether it is still there; gives what the user should know."""
        if self._channel is None or self._channel.is_quiet:
            return
        self._channel.close()
        self._is_found = False
        self._channel = hold(self._token, self._limit)
        if self._channel is not None:
            yield "the keeper's process is gone, and with it the copies in memory: another one is started"

    def is_of_use(self, *, trained: bool) -> bool:
        """Whether a later start may go on from what is kept.

        Args:
            trained: whether any iteration was made. Before that there is only what an earlier start has left.
        """
        return self.directory is not None and (self._is_found or trained)

    def end(self, *, over: bool, trained: bool) -> None:
        """This process ends.

        Args:
            over: whether nobody will go on from what is kept.
            trained: whether any iteration was made.
        """
        if self.directory is not None and (over or not self.is_of_use(trained=trained)):
            dismiss(self._token)
        if self._channel is not None:
            self._channel.close()
