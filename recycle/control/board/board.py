"""The board: what the members read and write in the store, by meaning, a part for each subject.

Every method raises StoreLost when the store is gone. What was not made with the run's token counts as not there.
"""

import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from recycle.control.board import keys
from recycle.control.board.failure_board import FailureBoard
from recycle.control.board.heartbeat_board import BeatBoard
from recycle.control.board.parts import BoardPart, EndBoard, LinkBoard, NoteBoard
from recycle.control.membership.messages import Death, Description, JoinRequest, MoveOrder, Opening, Verdict
from recycle.control.membership.participant import Participant, participants_of
from recycle.control.membership.view import Member, ServerRank
from recycle.control.store.log import Log
from recycle.control.store.sealed_store import STRANGE, SealedStore
from recycle.control.store.store import Store
from recycle.job import Server

RESTORED = 5.0
"""Seconds until nobody restores any more what a stranger has taken away or written over."""


class Board:
    """All that there is over one connection.

    Args:
        store: a connection to the store.
        token: the run's secret.

    Attributes:
        verdicts: which view the run is in.
        failures: alarms, reports and deaths.
        beats: hosts and their signs of life.
        links: where members are, and between which of them no data comes through.
        joining: who asks to be admitted.
        plans: that were made for a view.
        end: who has reached it.
        notes: that the first process made at the start.
    """

    def __init__(self, store: Store, token: str) -> None:
        self._sealed = sealed = SealedStore(store, token)
        self.verdicts = VerdictBoard(sealed)
        self.failures = FailureBoard(sealed)
        self.beats = BeatBoard(sealed)
        self.links = LinkBoard(sealed)
        self.joining = JoinBoard(sealed)
        self.plans = PlanBoard(sealed)
        self.end = EndBoard(sealed)
        self.notes = NoteBoard(sealed)

    def describe(self, description: Description) -> Description:
        """Say what the run is; gives what was said first."""
        return self._sealed.write_once(keys.RUN, description)

    def description(self) -> Description | None:
        """What the run is.

        Raises:
            ControlError: it was not described with this token.
        """
        described = self._sealed.plain.get(keys.RUN)
        return None if described is None else self._sealed.unseal(keys.RUN, described, Description)

    def probe(self) -> dict[str, bytes]:
        """Try what a recovery will need of the store: that it takes what is written, and has what was.

        Returns:
            What lasts as long as the run, by its keys, as it is stored; and whether somebody misses a note.
        """
        looked = (*keys.LASTING, keys.WANTED)
        found = zip(looked, self._sealed.plain.exchange({keys.PROBE: b""}, looked), strict=True)
        return {key: value for key, value in found if value is not None and self._is_own(key, value)}

    def tell_again(self, lasting: Mapping[str, bytes]) -> None:
        """Write what a store has not got: it is a new one, or a stranger has taken it away.

        Args:
            lasting: what ``probe`` has found before.
        """
        stored = self._sealed.plain.keep_first(lasting)
        for (key, value), found in zip(lasting.items(), stored, strict=True):
            if not self._is_own(key, found):
                self._sealed.plain.set(key, value)

    def _is_own(self, key: str, stored: bytes) -> bool:
        return self._sealed.find(key, stored, msgspec.Raw) is not None

    def declare_dead(self, deaths: Sequence[Death], source: str) -> None:
        """Tell everybody who needs to know that some members are dead, and be heard.

        Args:
            deaths: of whom, and how; of a host's members at once, so that they are missed in one change of the view.
            source: who says so.
        """
        told = {Member.parse(each.member): each for each in self.failures.publish_deaths(deaths)}
        # A verdict that still names them may be made at this moment, by somebody who has not seen the deaths. So they
        # are told in every epoch until the newest view is one that has heard them or does not need them.
        begun = self.verdicts.begun()
        while begun is not None and (named := [each for each in told if begun.view.names(each)]):
            epoch = begun.view.epoch
            self.failures.raise_alarm(
                epoch, f"{named[0]} {told[named[0]].reason}", source, [told[each] for each in named]
            )
            begun = self.verdicts.newest(epoch + 1)

    def forget(self, epoch: int, members: Collection[Member], ranks: int = 1) -> None:
        """Delete what only earlier epochs needed, so that the store does not grow with the number of failures.

        Args:
            epoch: the epoch that the run is in.
            members: of its view; all of earlier lives of their servers goes, and of those that ask to be let in.
            ranks: of each of them.
        """
        if self.verdicts.newest(epoch + 1) is not None:
            # Who comes this late does not know any more whose keys are needed.
            return
        self.verdicts.announce(epoch)
        needed = {*members, *(Member.parse(each.member) for each in self.joining.requests(epoch))}
        rest = keys.Needed.by(needed, self.beats.homes(participants_of(needed, ranks)).values())
        self._sealed.plain.delete_all(lambda key: keys.is_outlived(key, epoch, rest))


class VerdictBoard(BoardPart):
    """The verdicts of the run, of which the newest counts."""

    # As it was found, and what it is. No older one is believed after it, and none is put in its place.
    _read_last: tuple[bytes, Verdict] | None = None

    def open(self, opening: Opening) -> Opening:
        """Say with whom the run begins; gives what was said first."""
        return self._sealed.write_once(keys.OPENING, opening)

    def opening(self, timeout: float = 0.0) -> Opening | None:
        """With whom the run begins, after it was said or a time in seconds is over."""
        return self._sealed.read(keys.OPENING, Opening, timeout)

    def propose(self, verdict: Verdict) -> Verdict:
        """Try to begin an epoch; gives the verdict that counts, which may be somebody else's and of a later epoch.

        One key holds the newest verdict, and only an older one is ever replaced in it, in one step. So an epoch has
        one verdict for all time, whoever proposes however late.
        """
        sealed, store = self._sealed, self._sealed.plain
        before = self._look()
        newest = None if self._read_last is None else self._read_last[1]
        if newest is not None and newest.epoch >= verdict.epoch:
            return newest
        if verdict.unheard is not None:
            # It was true of the moment in which it was stored before.
            verdict = msgspec.structs.replace(verdict, unheard=None)
        desired = sealed.seal(keys.VIEW, verdict)
        after = store.compare_set(keys.VIEW, before or b"", desired)
        stored = verdict if after == desired else sealed.find(keys.VIEW, after, Verdict)
        if stored is None or stored.epoch < verdict.epoch:
            return self.propose(verdict)  # a stranger was in between
        self._read_last = after, stored
        store.set_many({keys.EPOCH: sealed.seal(keys.EPOCH, stored.epoch), keys.bell(stored.epoch): b""})
        return stored

    def announce(self, epoch: int) -> None:
        """Say the number of the newest verdict to those who look often."""
        self._sealed.write(keys.EPOCH, epoch)

    def number(self) -> int | None:
        """The number that was announced last; it may be late, but changes after every verdict that stays the newest."""
        return self._sealed.read(keys.EPOCH, int)

    def ring(self, epoch: int, leaders: Sequence[Member], verdict: Verdict | None = None) -> None:
        """End the wait for leaders, which have decided or cannot.

        Args:
            epoch: in which they are waited for.
            leaders: for whom.
            verdict: of the next epoch, if it is the one that counts: who has that of this epoch need not read it all.
        """
        bells = {keys.turn(epoch, each): b"" for each in leaders}
        if verdict is not None:
            # Those before it are dead, and each verdict says so of all of them.
            last = keys.turn(epoch, leaders[-1])
            bells[last] = self._sealed.seal(last, verdict.without_members())
        self._sealed.plain.set_many(bells)

    def await_turn(self, epoch: int, leader: Member, timeout: float) -> Verdict | None:
        """Wait until somebody rings for a leader, or some seconds are over. The connection is busy for that long.

        Returns:
            The verdict of the next epoch if it came with that, and the one before was read over this connection.
        """
        key = keys.turn(epoch, leader)
        sealed = self._sealed.plain.hear(key, timeout)
        if not sealed or self._read_last is None or self._read_last[1].epoch != epoch:
            return None
        told = self._sealed.find(key, sealed, Verdict)
        if told is None:
            return None
        verdict = told.following(self._read_last[1])
        self._read_last = b"", verdict
        return verdict

    def newest(self, epoch: int = 0) -> Verdict | None:
        """The newest verdict, if it is of this epoch or a later one; the same object as long as it is the same."""
        self._look()
        if self._read_last is None:
            return None
        newest = self._read_last[1]
        return newest if newest.epoch >= epoch else None

    def last(self) -> Verdict | None:
        """The newest verdict; where there is none, it is waited for a moment: a stranger may have taken it away."""
        deadline = time.monotonic() + RESTORED
        while (newest := self.newest()) is None and time.monotonic() < deadline:
            time.sleep(STRANGE)
        return newest

    def _look(self) -> bytes | None:
        """What is stored in the place of the newest verdict, which is known then."""
        stored = self._sealed.plain.get(keys.VIEW)
        if self._read_last is None or self._read_last[0] != stored:
            found = self._sealed.find(keys.VIEW, stored, Verdict)
            if found is not None and (self._read_last is None or self._read_last[1].epoch <= found.epoch):
                assert stored is not None, "something was found"
                self._read_last = stored, found
            elif self._read_last is not None:
                # A stranger has taken it away, or put an older one back; and not everybody has read it before.
                self._sealed.warn("a stranger writes to the store: the newest view was taken away, and is put back")
                known = self._sealed.seal(keys.VIEW, self._read_last[1])
                stored = self._sealed.plain.compare_set(keys.VIEW, stored or b"", known)
        return stored

    def begun(self) -> Verdict | Opening | None:
        """The newest verdict, or with whom the run begins. What a stranger has written over it is soon replaced."""
        deadline = time.monotonic() + RESTORED
        while True:
            begun = self.newest() or self.opening()
            if begun is not None or time.monotonic() >= deadline or self._sealed.plain.get(keys.VIEW) is None:
                return begun
            time.sleep(STRANGE)

    def wait(self, epoch: int, timeout: float) -> Verdict | None:
        """The same, after it exists or a time in seconds is over. The connection is busy for that long."""
        newest = self.newest(epoch)
        if newest is None:
            # Who decided may have died before it rang the bell: so the bell only ends the wait, and says nothing.
            self._sealed.plain.hear(keys.bell(epoch), timeout)
            newest = self.newest(epoch)
        return newest


class JoinBoard(BoardPart):
    """Who asks to be admitted, and who serves it."""

    def new_incarnation(self, server: Server) -> int:
        """A number for a new life of a server, given to nobody else; they start from 1."""
        return self._life_after(self._in_view(server))

    def _in_view(self, server: Server) -> Member:
        """A server's life in the newest view, or the first one.

        A store that has taken the place of a lost one has counted none of those before it.
        """
        verdict = self._sealed.read(keys.VIEW, Verdict)
        lives = () if verdict is None else verdict.view.members
        return max((each for each in lives if each.server == server), default=Member(server, 0))

    def _life_after(self, member: Member) -> int:
        """A number that is no dead member's, even where a stranger has put an older one back."""
        life = member
        while life == member or self._sealed.read(keys.death(life), Death) is not None:
            life = Member(life.server, self._sealed.count(keys.incarnation(life.server), life.incarnation))
        return life.incarnation

    def come(self, servers: Sequence[Server]) -> Member:
        """A new life of one of some dead servers: of the first one that nobody else brings back, if there is one.

        Args:
            servers: any of which may come back.
        """
        for server in servers:
            if self._is_coming(server, self._sealed.counted(keys.incarnation(server))):
                continue
            life = Member(server, self.new_incarnation(server))
            # Another process may have looked at the same moment, and have a number before this one.
            if not self._is_coming(server, life.incarnation - 1):
                return life
            self.withdraw(life)
        return Member(servers[0], self.new_incarnation(servers[0]))

    def withdraw(self, life: Member) -> None:
        """Say of a life that was given that nothing comes of it."""
        death = Death(str(life), "has given up before it joined", "itself", time.monotonic())
        self._sealed.write_once(keys.death(life), death)

    def _is_coming(self, server: Server, last: int) -> bool:
        """Whether one of the lives of a server that were given, up to a number, is on its way into the run."""
        given = range(self._in_view(server).incarnation + 1, last + 1)
        return any(self._sealed.read(keys.death(Member(server, each)), Death) is None for each in given)

    def keep_count(self, member: Member) -> None:
        """See that no later life of a member's server has its number: a new store has counted none before it."""
        key = keys.incarnation(member.server)
        if self._sealed.counted(key) < member.incarnation:
            self._sealed.count(key, member.incarnation - 1)

    def next_life(self, member: Member) -> Member:
        """The life in which a dead member's server comes back; who asks first decides that it does."""
        server = member.server
        return Member(server, self._sealed.write_once(keys.next_life(member), self._life_after(member)))

    def decided_life(self, member: Member) -> Member | None:
        """The same, if somebody has asked."""
        incarnation = self._sealed.read(keys.next_life(member), int)
        return None if incarnation is None else Member(member.server, incarnation)

    def replacement(self, server: Server, rank: ServerRank, process: str) -> Member:
        """The life of a dead server in processes that were started anew, one for each rank: all of them find the same.

        A rank of a life belongs to the process that asked first. If it has one already, as where a host is replaced
        twice, the process belongs to a later life.

        Args:
            server: which.
            rank: of the server that the process is.
            process: that asks; no other one says the same.
        """
        known, life = self._in_view(server), Member(server, 0)
        while True:
            number = self._sealed.read(keys.replacement(life), int)
            if number is None:
                crashed = self.decided_life(life)
                if crashed is not None:
                    life = crashed
                    continue
                number = self._sealed.write_once(keys.replacement(life), self._life_after(max(life, known)))
            life = Member(server, number)
            if self._sealed.write_once(keys.taken(Participant(life, rank)), process) == process:
                return life

    def request(self, request: JoinRequest) -> None:
        """Ask to be admitted, or say how the request stands now."""
        self._log(request.epoch).append(request)
        self._sealed.plain.set(keys.call(request.epoch), b"")

    def repeat(self, request: JoinRequest) -> None:
        """See that a request stands, and that members look for it: a stranger may have taken either away."""
        if request not in self.requests(request.epoch):
            self._log(request.epoch).append(request)
        self._sealed.plain.set(keys.call(request.epoch), b"")

    def asked(self, epoch: int, read: int = 0) -> int:
        """A number that changes with every request; to look at it costs less than to look at all requests.

        Args:
            epoch: which.
            read: the number behind which it may have changed.
        """
        return self._log(epoch).read(read).last

    def requests(self, epoch: int) -> tuple[JoinRequest, ...]:
        """How the requests of an epoch stand that were made with the run's token; any others are of no account."""
        return self.read_requests(epoch)[1]

    def read_requests(self, epoch: int) -> tuple[int, tuple[JoinRequest, ...]]:
        """The same behind what ``asked`` says then; less while one is counted and not stored yet."""
        page = self._log(epoch).read()
        told = [entry for _, entry in page.found]
        latest = {(each.member, each.rank, each.chunk): each for each in told if each is not None}
        return page.whole, tuple(latest.values())

    def _log(self, epoch: int) -> Log[JoinRequest]:
        return Log(self._sealed, keys.requests(epoch), JoinRequest)

    def order_move(self, order: MoveOrder) -> None:
        """Have all members of an epoch copy chunks."""
        self._sealed.write(keys.move(order.epoch), order)
        self._sealed.plain.set(keys.call(order.epoch), b"")

    def move(self, epoch: int) -> MoveOrder | None:
        """What is to be copied in an epoch, if anything is."""
        return self._sealed.read(keys.move(epoch), MoveOrder)

    def offer(self, epoch: int, member: Member, attempt: int, rank: int = 0) -> None:
        """Say to a member that asks that its stage's state is ready for it, or for one of its ranks."""
        self._sealed.write(keys.offer(epoch, member, attempt, rank), True)

    def wait_offer(self, epoch: int, member: Member, attempt: int, timeout: float, rank: int = 0) -> bool:
        """Wait until somebody has said so, or a time in seconds is over. The connection is busy for that long."""
        return self._sealed.read(keys.offer(epoch, member, attempt, rank), bool, timeout) is True


class PlanBoard(BoardPart):
    """Plans that were made for a view."""

    def publish(self, epoch: int, author: Member, plan: bytes) -> None:
        """Offer a plan for an epoch, for the verdict that the same member is about to propose."""
        self._sealed.write(keys.plan(epoch, author), plan)

    def find(self, epoch: int, author: Member) -> bytes | None:
        """The plan that a member offered for an epoch."""
        return self._sealed.read(keys.plan(epoch, author), bytes)
