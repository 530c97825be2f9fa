"""Broken links: two hosts give signs of life, and no data comes through between them.

A cable may be cut between two switches, or large packets may vanish on the way. The kernel knows it: what was sent is
not acknowledged, however often it is sent again; and who connects gets no answer. A host that is dead, or that was cut
off from all others, gives no sign of life, and is missed before.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from recycle.control.board.board import Board
from recycle.control.board.parts import Complaint, Whereabouts
from recycle.control.host.signs import host_name
from recycle.control.membership.addresses import answers
from recycle.control.membership.messages import Death
from recycle.control.membership.participant import Participant, participants_of
from recycle.control.membership.view import Member, View
from recycle.holding import units, units_of
from recycle.job import Job
from recycle.runtime.net.gloo.sockets import unanswered


def host_to_leave_out(
    broken: Collection[frozenset[str]], hosts: Sequence[str], dispensable: Callable[[str], bool]
) -> str | None:
    """The host without which the run goes on; all who know the same choose the same.

    It is the one with the most broken links, and of those with as many the last one, so that the first host stays.

    Args:
        broken: the two hosts of each link over which nothing comes.
        hosts: of the view, in its order.
        dispensable: whether the others have all that a host has.

    Returns:
        Which; None where each of them is needed.
    """
    counts = Counter(host for pair in broken if pair <= set(hosts) for host in pair)
    candidates = [each for each in hosts if counts[each] and dispensable(each)]
    return max(candidates, key=lambda each: (counts[each], hosts.index(each)), default=None)


SUSPECT = 3.0
"""Seconds for which nothing that was sent to a host may be acknowledged before that is said."""

LIMIT = 20.0
"""Seconds of the same after which the run goes on without one of the two hosts."""

LATEST = 25.0
"""The same if the other host answers by then. The kernel tries again 13 s after it has first sent something, and then
only 25 s after it; if large packets alone vanish, that is in vain."""


class LinkWatch:
    """One rank's part in it. Two threads may use it, each with a connection to the store of its own.

    Args:
        me: which one.
        address: at which others reach this machine.
        view: the present one.
        job: what is trained, with what each server holds in that view.
        say: tells the user something.
        now: a clock, in seconds.
        look_at_kernel: gives the addresses that acknowledge nothing.
        answers: whether anything comes back from an address within some seconds.
    """

    def __init__(
        self,
        me: Participant,
        address: str,
        view: Callable[[], View],
        job: Callable[[], Job],
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        look_at_kernel: Callable[[], Collection[str]] = unanswered,
        answers: Callable[[str, float], bool] = answers,
    ) -> None:
        self._me = me
        self._own = Whereabouts(socket.gethostname(), host_name(), address)
        self._view = view
        self._job = job
        self._say = say
        self._now = now
        self._look_at_kernel = look_at_kernel
        self._answers = answers
        self._lock = threading.Lock()
        # Since when nothing came through to others, and to whom that was said.
        self._since: dict[Member, float] = {}
        self._said: set[Member] = set()
        # Who gave no answer to this rank in a view that cannot be built; until one is, there is nothing else to go by.
        self._blamed: set[Member] = set()
        # All complaints, up to a number in their log; and of those the hosts that were shown to the user.
        self._complaints: dict[tuple[Member, Member], None] = {}
        self._read = 0
        self._shown: set[frozenset[str]] = set()
        self._found: dict[Participant, Whereabouts] = {}

    def begin(self, board: Board) -> None:
        """Say where this rank is."""
        board.links.settle(self._me, self._own)

    def built(self) -> None:
        """All have connected in a view."""
        with self._lock:
            self._blamed.clear()

    def look(self, board: Board) -> None:
        """Every now and then, while a view goes on."""
        with self._lock:
            self._note(board, self._members_at(board, self._look_at_kernel()))
            if self._me.rank.is_first and self._view().members[:1] == (self._me.member,):
                self._show(board)

    def blame(self, board: Board, names: Sequence[str]) -> None:
        """A view cannot be built, because others give no answer to who connects to them.

        Args:
            board: to tell it.
            names: what people call their ranks.
        """
        members = {self._me.rank.of(each.server): each for each in self._view().members}
        meant = {members[each] for each in names if each in members}
        with self._lock:
            # Where the network is slow, or the other host busy, its kernel still answers.
            silent = {each for each in meant if self._host_answers(board, each) is False}
            self._blamed |= silent
            self._note(board, silent)
            self._show(board)

    def _members_at(self, board: Board, addresses: Collection[str]) -> set[Member]:
        if not addresses:
            return set()
        found = self._whereabouts(board)
        return {each.member for each, there in found.items() if there.address in addresses} - {self._me.member}

    def _note(self, board: Board, silent: Collection[Member]) -> None:
        """Take note of members to whom nothing comes through, and do what is due.

        Args:
            board: to tell it.
            silent: who they are.
        """
        now, log = self._now(), board.links.complaints()
        self._since = {each: self._since.get(each, now) for each in self._blamed.union(silent)}
        for each in [each for each in self._said if each not in self._since]:
            self._said.remove(each)
            log.append(Complaint(str(self._me.member), str(each), over=True))
        lasting = {each: now - since for each, since in self._since.items() if each in silent}
        for each, seconds in lasting.items():
            if seconds >= SUSPECT and each not in self._said:
                self._said.add(each)
                log.append(Complaint(str(self._me.member), str(each)))
        if any(seconds >= LIMIT and not self._may_pass(board, each, seconds) for each, seconds in lasting.items()):
            self._leave_one_out(board)

    def _may_pass(self, board: Board, other: Member, seconds: float) -> bool:
        """Whether what is under way to another member may get there soon."""
        return seconds < LATEST and self._host_answers(board, other) is True

    def _host_answers(self, board: Board, member: Member) -> bool | None:
        """Whether the host of a member answers at once; None if nothing tells where it is."""
        places = {each.member: there.address for each, there in self._whereabouts(board).items()}
        return self._answers(places[member], SUSPECT) if member in places else None

    def _show(self, board: Board) -> None:
        """Tell the user which two hosts it is."""
        broken = self._broken(board)
        if broken.keys() <= self._shown:
            return
        host = self._left_out(board, broken)
        names = {there.host: there.name for there in self._whereabouts(board).values()}
        end = f"after {LIMIT:g} s the run goes on without {names[host]}" if host else "the run can do without neither"
        for pair in broken.keys() - self._shown:
            self._shown.add(pair)
            self._say(f"{broken[pair]}, though both give signs of life: look at cables, firewalls and the MTU; {end}")

    def _leave_one_out(self, board: Board) -> None:
        broken = self._broken(board)
        if host := self._left_out(board, broken):
            reason = f"is left out: {next(text for pair, text in broken.items() if host in pair)}"
            members = sorted(self._members_on(board, host))
            board.declare_dead([Death(str(each), reason, "link", time.monotonic()) for each in members], str(self._me))

    def _left_out(self, board: Board, broken: Mapping[frozenset[str], str]) -> str | None:
        """The host without which the run goes on; None where it is well, or can do without none."""
        view, job = self._view(), self._job()

        def dispensable(host: str) -> bool:
            others = set(view.members) - self._members_on(board, host)
            return {unit for each in others for unit in units_of(job, each.server)} == set(units(job))

        hosts = tuple(dict.fromkeys(there.host for there in self._whereabouts(board).values()))
        return host_to_leave_out(broken.keys(), hosts, dispensable)

    def _members_on(self, board: Board, host: str) -> set[Member]:
        return {each.member for each, there in self._whereabouts(board).items() if there.host == host}

    def _broken(self, board: Board) -> Mapping[frozenset[str], str]:
        """The pairs of hosts between which nothing comes through, as members of this view have said, and in words."""
        page = board.links.complaints().read(self._read)
        for number, complaint in page.found:
            if complaint is not None and number <= page.whole:
                pair = Member.parse(complaint.member), Member.parse(complaint.other)
                if complaint.over:
                    self._complaints.pop(pair, None)
                else:
                    self._complaints[pair] = None
        # It may be another store.
        self._read = page.whole if page.last >= self._read else 0
        live = set(self._view().members)
        pairs = [pair for pair in self._complaints if live.issuperset(pair)]
        if not pairs:
            return {}
        places = {each.member: there for each, there in reversed(self._whereabouts(board).items())}
        found = {}
        for one, other in map(sorted, pairs):
            here, there = places.get(one), places.get(other)
            if here is not None and there is not None and here.host != there.host:
                names = f"{here.name} ({one.server}) and {there.name} ({other.server})"
                found[frozenset((here.host, there.host))] = f"no data comes through between {names}"
        return found

    def _whereabouts(self, board: Board) -> dict[Participant, Whereabouts]:
        """Of all ranks of all members of the view; they are asked for once."""
        everybody = participants_of(self._view().members, self._me.rank.size)
        if any(each not in self._found for each in everybody):
            self._found = board.links.whereabouts(everybody)
        return {each: self._found[each] for each in everybody if each in self._found}
