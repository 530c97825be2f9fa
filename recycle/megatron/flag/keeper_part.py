"""The part that an agent's process has in its host's keeper: it offers a place, and serves there if that is taken."""

from collections.abc import Sequence
from contextlib import suppress

from recycle.control.board import Board
from recycle.control.errors import StoreLost
from recycle.control.participant import participants_of
from recycle.control.view import Member
from recycle.errors import UserError
from recycle.job import Server
from recycle.runtime.launch.keepers import KeeperSetting, Seat, dismiss, serve_from, settle
from recycle.runtime.launch.meeting import RollCall
from recycle.runtime.launch.outcome import is_over
from recycle.runtime.net.endpoint import Endpoint
from recycle.state.redundancy import Redundancy


class KeeperPart:
    """It is there before the processes of a run meet, until the run has ended.

    What a version takes is known when the model is there. So a keeper may hold what its host has left at first, and
    servers say what it takes before they train.

    Args:
        redundancy: how the state is kept.
        meeting: of the run's processes, none of which has been told anything yet.

    Raises:
        RunError: this host's address is not of this machine.
    """

    def __init__(self, redundancy: Redundancy, meeting: RollCall) -> None:
        self._redundancy = redundancy
        self._meeting = meeting
        self._seat = Seat(None, meeting.address, resumes=False)
        meeting.keeper = self._seat.offer

    def direct(self, servers: Sequence[Server], ranks: int, endpoint: Endpoint) -> None:
        """In the first process, when all have come: say who keeps what.

        Args:
            servers: all, in the order of their ranks.
            ranks: of each.
            endpoint: of the run's store.

        Raises:
            UserError: there are too few hosts. All who came are told.
        """
        everybody = participants_of([Member(each, 0) for each in servers], ranks)
        try:
            directory = self._setting(0).direct(everybody, self._meeting.hellos)
        except UserError as error:
            self._meeting.refuse(str(error))
            raise
        directory.tell(endpoint.connect(), endpoint.token)

    def serve(self, server: Server, endpoint: Endpoint) -> None:
        """Have a keeper on this host, in the place of a lost one where the run has begun without it.

        The calling process must have no other threads, because it may fork.

        Args:
            server: of this process.
            endpoint: of the run's store, and this host.

        Raises:
            RunError: this host has not got the memory.
            StoreLost: there is no store.
        """
        setting = self._setting(self._seat.offer.memory)
        if not self._meeting.is_late:
            serve_from(setting, endpoint)
            return
        board = Board(endpoint.connect(), endpoint.token)
        verdict = board.verdicts.newest()
        members = () if verdict is None else verdict.view.members
        settle(setting, endpoint, server, {each.server for each in members if board.failures.death(each) is None})

    def dismiss(self, endpoint: Endpoint) -> None:
        """At the end of this process: its host's keeper goes, unless others go on, or nobody can say."""
        with suppress(StoreLost):
            board = Board(endpoint.connect(), endpoint.token)
            if board.verdicts.newest() is None or is_over(board):
                dismiss(endpoint.token)

    def _setting(self, limit: int) -> KeeperSetting:
        return KeeperSetting(self._redundancy, lambda _: limit, self._seat, lambda _: "")
