"""The keepers' processes: one on each host of a run, which outlives its parent until the run is over."""

import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from recycle.control.board.board import Board
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, ServerRank, View
from recycle.job import Server
from recycle.record.recording import CopyLine, InstantLine
from recycle.record.reporting import Reporter
from recycle.runtime.errors import RunError
from recycle.runtime.keep.keeper_copies import KeeperCopies, KeptStage, KnownKeepers
from recycle.runtime.launch.meet.greetings import Hello, KeeperOffer
from recycle.runtime.launch.process.detached import fork_keeper
from recycle.runtime.launch.process.outcome import is_over
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.recover.view_reports import now
from recycle.state import keeper
from recycle.state.channel import HERE, Channel
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.errors import KeeperLost
from recycle.state.host_memory import available_memory
from recycle.state.ladder import StatePart
from recycle.state.redundancy import Redundancy
from recycle.wording import memory_text


class KeeperSlot:
    """A process's part in its host's having a keeper: it offers a place, and serves there if that is taken.

    Where the run goes on and the keeper of its last start is still there, that one is offered.

    Args:
        left: the token of that start; empty if there was none.
        address: at which other hosts reach this one; None where the run has no others.
        resumes: whether the run goes on. Otherwise a keeper that is left has no use any more, and is told so.
        serves: whether it may be this process that starts a keeper. Where there is no address, one process of all does.

    Attributes:
        token: of the run's last start, with which it goes on; empty if it begins anew.
        listener: where other hosts reach a keeper that is started from here; None where none is.
        channel: to this host's keeper, which stays for as long as this is open.
        offer: what it offers. What a host has left changes all the time, and it is held to what it has said.

    Raises:
        RunError: the address is not of this machine.
    """

    def __init__(self, left: str, address: str | None, *, resumes: bool, serves: bool = True) -> None:
        self.token = ""
        self.listener: socket.socket | None = None
        self.channel: Channel | None = None
        port: int | None = None
        epoch = held = 0
        if left:
            client = KeeperClient(HERE, left, "this host's keeper")
            with suppress(KeeperLost):
                if resumes:
                    port = client.find_port()
                    copies = client.copies()
                    epoch = max((each.part.epoch + 1 for each in copies), default=0)
                    held = sum(each.size for each in copies)
                else:
                    client.dismiss()
            self.token = left if resumes else ""
        self._serves = serves and port is None
        if port is None and address is not None:
            try:
                self.listener = keeper.listen_to_hosts(address)
            except OSError as error:
                raise RunError(f"address {address}: {error.strerror}; give an address of this machine") from error
            port = self.listener.getsockname()[1]
        self.offer = KeeperOffer(port or 0, available_memory() + held, epoch)

    def is_taken(self, directory: KeeperDirectory, address: str) -> bool:
        """Whether this process has to start its host's keeper.

        Args:
            directory: of the run's keepers.
            address: of this host.
        """
        return self._serves and any((each.address, each.port) == (address, self.offer.port) for each in directory.homes)

    def close(self) -> None:
        """Nobody is to be served from this process."""
        if self.listener is not None:
            self.listener.close()


class KeeperSetting(NamedTuple):
    """How a run keeps its state in memory.

    Attributes:
        redundancy: how many hosts' keepers hold something of each part, and how many of them are enough.
        bytes_of: the most bytes that all versions of some stages have which are kept at the same time.
        slot: this process's part in its host's keeper.
        describe: says what it costs and survives.
        writing: the bytes that a keeper takes beside those while it writes a stage to disk.
        within: the folder in which it may do so, also for a later start of the run that finds it; None where none asks.
        begin: told, once all processes have come, whether any host has copies of an earlier start; raises RunError
            where these do not fit the run.
    """

    redundancy: Redundancy
    bytes_of: Callable[[Collection[int]], int]
    slot: KeeperSlot
    describe: Callable[[KeeperDirectory], str]
    writing: int = 0
    within: Path | None = None
    begin: Callable[[bool], None] = lambda _: None

    def direct(self, everybody: Sequence[Participant], hellos: Sequence[Hello]) -> KeeperDirectory:
        """The directory of the run's keepers.

        Args:
            everybody: who begins, by the rank in the order of which they are started apart.
            hellos: what their processes say, or that of the only host.

        Raises:
            StateError: there are not so many hosts.
            RunError: one of them has not got the memory, or has copies that do not fit the run.
        """
        homes: list[KeeperHome] = []
        offers: list[Hello] = []
        on: dict[str, int] = {}
        for place, each in enumerate(everybody):
            hello = hellos[place % len(hellos)]
            found = next((number for number, home in enumerate(homes) if home.address == hello.address), len(homes))
            if found == len(homes):
                homes.append(KeeperHome(hello.host, hello.address, hello.keeper.port))
                offers.append(hello)
            # Where its ranks are on several hosts, that of the first one.
            on.setdefault(str(each.member.server), found)
        directory = KeeperDirectory(tuple(homes), self.redundancy, on)
        for stages, hello in zip(directory.stages(), offers, strict=True):
            limit = self.bytes_of(stages) + self.writing
            if limit > hello.keeper.memory:
                raise RunError(
                    f"keep-in-memory: what {hello.host} keeps takes {memory_text(limit, 'B')}, and it has "
                    f"{memory_text(hello.keeper.memory, 'B')} left; take a smaller model or hosts with more memory, or "
                    f"leave it off"
                )
        self.begin(any(each.keeper.epoch for each in hellos))
        return directory

    def limit(self, directory: KeeperDirectory, address: str) -> int:
        """The most bytes that this host's keeper may hold."""
        place = next(number for number, home in enumerate(directory.homes) if home.address == address)
        return self.bytes_of(directory.stages()[place])


def serve_from(setting: KeeperSetting, endpoint: Endpoint) -> None:
    """Have a keeper on this host, from a process that was started apart, for as long as it is there.

    The calling process must have no other threads, because it may fork.

    Args:
        setting: how the run keeps its state.
        endpoint: of the run's store.

    Raises:
        StoreLost: there is no store.
    """
    token, slot = endpoint.token, setting.slot
    directory = KeeperDirectory.read(endpoint.connect(), token)
    limit = 0 if directory is None else setting.limit(directory, endpoint.address)
    if directory is None or not slot.is_taken(directory, endpoint.address):
        slot.close()
    else:
        doors = [keeper.listen(token), *([] if slot.listener is None else [slot.listener])]
        fork_keeper(doors, token, limit, setting.within)
    slot.channel = hold(token, limit)


def settle(setting: KeeperSetting, endpoint: Endpoint, server: Server, alive: Collection[Member]) -> None:
    """Have a keeper on the host of a server that joins, in the place of its own that is gone, or of another host's.

    The calling process must have no other threads, because it may fork.

    Args:
        setting: how the run keeps its state.
        endpoint: of the run's store, and this host.
        server: which joins.
        alive: the members that are.

    Raises:
        RunError: this host has not got the memory.
        StoreLost: there is no store.
    """
    token, slot, store = endpoint.token, setting.slot, endpoint.connect()
    # The ranks of a server share a host.
    there = Board(store, token).links.whereabouts(map(Participant, alive))
    while (directory := KeeperDirectory.read(store, token)) is not None:
        # A store that has taken the place of a lost one has not been told where all are.
        began = [directory.address_of(each.server) for each in alive if Participant(each) not in there]
        taken = {*began, *(each.address for each in there.values())}
        own = [place for place, home in enumerate(directory.homes) if home.address == endpoint.address]
        places = own or directory.vacant(server, taken)
        place = next((each for each in places if _is_gone(directory.homes[each], endpoint)), None)
        if place is None or slot.listener is None:
            break
        limit = setting.bytes_of(directory.stages()[place])
        if limit + setting.writing > slot.offer.memory:
            raise RunError(
                f"keep-in-memory: what this host keeps takes {memory_text(limit + setting.writing, 'B')}, and it has "
                f"{memory_text(slot.offer.memory, 'B')} left; join on another one"
            )
        try:
            near = keeper.listen(token)
        except OSError:
            break  # another server that joins here has one
        home = KeeperHome(socket.gethostname(), endpoint.address, slot.offer.port)
        if directory.replace(place, home, store, token):
            fork_keeper([near, slot.listener], token, limit, setting.within)
            break
        near.close()
    slot.close()
    slot.channel = hold(token, 0)


def client_of(home: KeeperHome, endpoint: Endpoint) -> KeeperClient:
    """What asks a host's keeper from here.

    Args:
        home: of the keeper.
        endpoint: of the run's store, and this host.
    """
    return KeeperClient(home.reach(endpoint.address), endpoint.token, home.name(endpoint.address))


def _is_gone(home: KeeperHome, endpoint: Endpoint) -> bool:
    """Whether a keeper cannot be reached; what it has is needed, if it can."""
    try:
        client_of(home, endpoint).find_port()
    except KeeperLost:
        return True
    return False


def dismiss_after(endpoint: Endpoint) -> None:
    """At the end of a process that was started apart: its host's keeper goes, unless the run may go on from it."""
    with suppress(StoreLost):
        if is_over(endpoint.board()):
            dismiss(endpoint.token)


def hold(token: str, limit: int) -> Channel | None:
    """Have this host's keeper stay for as long as this process is there, or the channel; None where there is none.

    Args:
        token: the run's.
        limit: the bytes that it may keep at least, also where an earlier start has left it.
    """
    deadline = time.monotonic() + 1.0
    while True:
        try:
            return KeeperClient(HERE, token, "this host's keeper").hold(limit)
        except KeeperLost:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)


def is_kept(token: str) -> bool:
    """Whether the keeper of a run's start is on this host.

    Args:
        token: of that start.
    """
    with suppress(KeeperLost):
        return KeeperClient(HERE, token, "this host's keeper").find_port() >= 0
    return False


def dismiss(token: str) -> None:
    """The run is over, and this host's keeper is not needed any more."""
    with suppress(KeeperLost):
        KeeperClient(HERE, token, "this host's keeper").dismiss()


class KeeperFinder:
    """Finds them in the run's store; another host's may take the place of one between two views.

    Args:
        directory: as it is in the store.
        endpoint: of the store, and this host.
        server: whose parts they keep.
        reporter: is told what the user should know.
        every: they write every so many versions to disk; 0 where they write none.
    """

    def __init__(
        self, directory: KeeperDirectory, endpoint: Endpoint, server: Server, reporter: Reporter, every: int = 0
    ) -> None:
        self._endpoint = endpoint
        self._server = server
        self._reporter = reporter
        self._every = every
        # What the host of each keeper is called that was ever known, by what that is called here.
        self._hosts: dict[str, str] = {}
        self._known = self._know(directory)

    def copies(self, source: KeptStage, rank: ServerRank, depth: int, view: Callable[[], View]) -> KeeperCopies:
        """What puts a rank's parts of its versions with keepers, and gets versions from there.

        Args:
            source: the versions.
            rank: of the server.
            depth: P.
            view: gives the view in which the server works.
        """
        return KeeperCopies(self.find, self._server, depth, source, view, self.tell, self._tell_copies, rank)

    def tell(self, kind: Literal["warning", "memory"], text: str) -> None:
        """Tell the user something of keepers."""
        self._reporter.tell(InstantLine(kind, now(), str(self._server), text))

    def _tell_copies(self, part: StatePart, keepers: Sequence[str]) -> None:
        place = part.stage, part.epoch, part.version, part.number, part.parts, part.began
        self._reporter.tell(CopyLine(str(self._server), *place, [self._hosts[each] for each in keepers], part.needed))

    def find(self) -> KnownKeepers:
        """Those of the run now; those of the last time where the store is lost."""
        with suppress(StoreLost):
            found = KeeperDirectory.read(self._endpoint.connect(), self._endpoint.token)
            self._known = self._known if found is None else self._know(found)
        return self._known

    def _know(self, directory: KeeperDirectory) -> KnownKeepers:
        address = self._endpoint.address
        self._hosts.update(directory.host_names(address))
        own = directory.keepers_of(self._server)
        others = [each for each in directory.homes if each not in own]
        near = next((each.name(address) for each in directory.homes if each.address == address), "")
        ours, theirs = ([client_of(each, self._endpoint) for each in homes] for homes in (own, others))
        return KnownKeepers(ours, directory.redundancy, theirs, near, self._every)
