"""The part that an agent's process has in its host's keeper: it offers a place, and serves there if that is taken."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from recycle.control.board.joinfile import JOIN_FILE, JoinFile, last_start, last_token
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.participant import participants_of
from recycle.control.membership.view import Member
from recycle.errors import UserError
from recycle.files import own_folder
from recycle.job import Server
from recycle.megatron.flag.command.flags import RECORD, RESUME, TOKEN, Flags
from recycle.megatron.flag.start.same_command import require_same, write_settings
from recycle.runtime.errors import RunError
from recycle.runtime.keep.fetching import ask_all
from recycle.runtime.launch.meet.keepers import KeeperSetting, KeeperSlot, client_of, dismiss, serve_from, settle
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.process.outcome import is_over, was_kept
from recycle.runtime.net.endpoint import Endpoint
from recycle.saying import say
from recycle.state.directory import KeeperDirectory
from recycle.state.errors import KeeperLost
from recycle.state.keeper import LINGER
from recycle.state.ladder import find_whole
from recycle.state.redundancy import Redundancy
from recycle.wording import plural

OTHERWISE = f"leave {RESUME} out, and --load a checkpoint to go on from that"

MEMORY = "memory"
"""The folder, in that of the recordings, with what the next start needs to find keepers."""


def find_last_start(flags: Flags) -> JoinFile | None:
    """That from which a run goes on; None if it begins anew.

    Raises:
        RunError: nothing says it.
    """
    folder = _folder(flags)
    last = last_start(folder) if flags.resume and folder is not None else None
    if flags.resume and last is None:
        raise RunError(f"{RESUME}: in {folder} nothing says where the state of an earlier start is; {OTHERWISE}")
    return last


def require_token(last: JoinFile | None, token: str) -> None:
    """Refuse to go on from a start that had another secret: its keepers would give nothing.

    Args:
        last: that start; None for none.
        token: of this one.

    Raises:
        RunError: they differ.
    """
    if last is not None and last.token != token:
        raise RunError(
            f"{RESUME}: the earlier start had another secret; give all hosts the one that it had with {TOKEN}, or "
            f"{OTHERWISE}"
        )


class KeeperPart:
    """It is there before the processes of a run meet, until the run has ended.

    What a version takes is known when the model is there. So a keeper may hold what its host has left at first, and
    servers say what it takes before they train.

    Args:
        flags: recycle's.
        redundancy: how the state is kept.
        meeting: of the run's processes, which have agreed on a token, and none of which has been told anything else.
        token: it.
        words: of the command line, after the script's name.

    Attributes:
        resumes: whether the run goes on from what is left of an earlier start.
        directory: who keeps what, in the first process once it has said it.

    Raises:
        RunError: this host's address is not of this machine.
    """

    def __init__(
        self, flags: Flags, redundancy: Redundancy, meeting: Rendezvous, token: str, words: Sequence[str]
    ) -> None:
        self.resumes = flags.resume
        self.directory: KeeperDirectory | None = None
        self._redundancy = redundancy
        self._meeting = meeting
        self._folder = _folder(flags)
        self._words = words
        # Who comes late finds the run's own there.
        left = token if self.resumes or self._folder is None else last_token(self._folder)
        # On one host nothing need come from others.
        alone, is_first = meeting.start.is_on_one_host, meeting.start.rank == 0
        address = None if alone else meeting.address
        self._seat = KeeperSlot(left, address, resumes=left == token, serves=is_first or not alone)
        meeting.keeper = self._seat.offer

    def direct(self, servers: Sequence[Server], ranks: int, endpoint: Endpoint) -> None:
        """In the first process, when all have come: say who keeps what.

        Args:
            servers: all, in the order of their ranks.
            ranks: of each.
            endpoint: of the run's store.

        Raises:
            UserError: there are too few hosts, or nothing is left to go on from. All who came are told.
        """
        everybody = participants_of([Member(each, 0) for each in servers], ranks)
        try:
            directory = self._setting(0).direct(everybody, self._meeting.hellos)
            if self.resumes:
                if self._folder is not None:
                    require_same(self._folder, self._words, self._meeting.start.count)
                _require_whole(directory, {each.stage for each in servers}, ranks, endpoint)
            if self._folder is not None:
                _tell_next_start(self._folder, endpoint, self._meeting, self._words)
        except UserError as error:
            self._meeting.refuse(str(error))
            raise
        directory.tell(endpoint.connect(), endpoint.token)
        self.directory = directory

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
        board = endpoint.board()
        verdict = board.verdicts.last()
        members = () if verdict is None else verdict.view.members
        settle(setting, endpoint, server, [each for each in members if board.failures.death(each) is None])

    def dismiss(self, endpoint: Endpoint) -> None:
        """At the end of this process: its host's keeper goes, unless others go on or can, or nobody can say."""
        with suppress(StoreLost):
            board = endpoint.board()
            # A start that goes on from memory, and has not begun, leaves it to the next one.
            if is_over(board) or (board.verdicts.last() is None and not self.resumes):
                dismiss(endpoint.token)
            elif was_kept(board) is False and self._folder is not None and self._meeting.start.rank == 0:
                say(
                    f"all servers are dead; the memory of hosts has the state for {LINGER / 60:.0f} minutes: "
                    f"start the same command there again with {RESUME}"
                )

    def _setting(self, limit: int) -> KeeperSetting:
        return KeeperSetting(self._redundancy, lambda _: limit, self._seat, lambda _: "")


def _tell_next_start(folder: Path, endpoint: Endpoint, meeting: Rendezvous, words: Sequence[str]) -> None:
    """Write what it needs to find this start's keepers, and to judge whether it can go on from them."""
    try:
        own_folder(folder)
    except OSError as error:
        raise RunError(
            f"{RECORD}: {folder} cannot be made: {error.strerror}; give another folder, or leave it out"
        ) from error
    write_settings(folder, words, meeting.start.count)
    JoinFile(endpoint.host, endpoint.port, 0, endpoint.token, nonce=meeting.nonce).write(folder / JOIN_FILE)


def _require_whole(directory: KeeperDirectory, stages: set[int], ranks: int, endpoint: Endpoint) -> None:
    """Refuse to go on from keepers that have no version of all stages."""
    clients = [client_of(each, endpoint) for each in directory.homes]
    copies = [copy for found in ask_all(clients) if not isinstance(found, KeeperLost) for copy in found]
    whole = find_whole(each for each in copies if each.part.ranks == ranks)
    if not set.intersection(*(set(whole.get(stage, ())) for stage in stages)):
        raise RunError(
            f"{RESUME}: the memory of {plural(len(clients), 'host')} has no version that all stages have; {OTHERWISE}"
        )


def _folder(flags: Flags) -> Path | None:
    return None if flags.record is None else flags.record / MEMORY
