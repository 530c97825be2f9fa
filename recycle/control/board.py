"""The board: what the members read and write in the store, by meaning. Nothing else knows the names of the keys."""

from collections.abc import Collection, Iterable
from typing import TypeVar

from recycle.control.errors import ControlError
from recycle.control.messages import Alarm, Death, Description, JoinRequest, Report, Verdict, seal, unseal
from recycle.control.store import Store
from recycle.control.view import Member
from recycle.job import Server

_T = TypeVar("_T")
_RUN, _VIEW, _ASKED = "run", "view", "asked"


class Board:
    """Typed and sealed access to the store over one connection.

    Every method raises StoreLost when the store is gone, and every one that reads raises ControlError when what it
    finds was not made with the token.

    Args:
        store: a connection to the store.
        token: the run's secret.
    """

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._read_last: tuple[bytes, Verdict] | None = None

    # The run, and its verdicts.

    def describe(self, description: Description) -> Description:
        """Say what the run is; gives what was said first."""
        return self._put_once(_RUN, description)

    def description(self) -> Description | None:
        """What the run is."""
        return self._read(_RUN, Description)

    def propose(self, verdict: Verdict) -> Verdict:
        """Try to begin an epoch; gives the verdict that counts, which may be somebody else's and of a later epoch.

        One key holds the newest verdict, and only an older one is ever replaced in it, in one step. So an epoch has
        one verdict for all time, whoever proposes however late.
        """
        before = self._store.get(_VIEW)
        if before is not None:
            newest = unseal(self._token, _VIEW, before, Verdict)
            if newest.epoch >= verdict.epoch:
                return newest
        after = self._store.compare_set(_VIEW, before or b"", seal(self._token, _VIEW, verdict))
        stored = unseal(self._token, _VIEW, after, Verdict)
        self._store.set(_bell(stored.epoch), b"")
        return stored

    def verdict(self, epoch: int = 0) -> Verdict | None:
        """The newest verdict, if it is of this epoch or a later one; the same object as long as it is the same."""
        sealed = self._store.get(_VIEW)
        if sealed is None:
            return None
        if self._read_last is None or self._read_last[0] != sealed:
            self._read_last = sealed, unseal(self._token, _VIEW, sealed, Verdict)
        newest = self._read_last[1]
        return newest if newest.epoch >= epoch else None

    def wait_verdict(self, epoch: int, timeout: float) -> Verdict | None:
        """The same, after it exists or a time in seconds is over. The connection is busy for that long."""
        newest = self.verdict(epoch)
        if newest is None:
            # Who decided may have died before it rang the bell: so the bell only ends the wait, and says nothing.
            self._store.wait(_bell(epoch), timeout)
            newest = self.verdict(epoch)
        return newest

    # Failures.

    def alarm(self, epoch: int, cause: str, source: str) -> Alarm:
        """Raise the alarm of an epoch; gives the one that was raised first."""
        return self._put_once(_alarm(epoch), Alarm(epoch, source, cause))

    def alarm_of(self, epoch: int) -> Alarm | None:
        """The alarm of an epoch, if one was raised."""
        return self._read(_alarm(epoch), Alarm)

    def wait_alarm(self, epoch: int, timeout: float) -> Alarm | None:
        """The same, after it was raised or a time in seconds is over. The connection is busy for that long."""
        return self.alarm_of(epoch) if self._store.wait(_alarm(epoch), timeout) else None

    def publish_report(self, report: Report) -> None:
        """Tell the others what this member holds."""
        self._write(_report(report.epoch, report.member), report)

    def report(self, epoch: int, member: Member) -> Report | None:
        """What a member said in an epoch."""
        return self._read(_report(epoch, member), Report)

    def reported(self, epoch: int) -> frozenset[str]:
        """The names of those who have reported in an epoch; one look for all."""
        prefix = _report(epoch, "")
        return frozenset(key.removeprefix(prefix) for key in self._store.keys(prefix))

    def declared_dead(self) -> frozenset[str]:
        """The names of those who were declared dead; one look for all."""
        prefix = _death("")
        return frozenset(key.removeprefix(prefix) for key in self._store.keys(prefix))

    def publish_death(self, death: Death) -> Death:
        """Declare a member dead; gives what was said first."""
        return self._put_once(_death(death.member), death)

    def death(self, member: Member) -> Death | None:
        """How a member died, if it was declared dead."""
        return self._read(_death(member), Death)

    # Signs of life.

    def beat(self, member: Member, count: int) -> None:
        """Give a sign of life.

        Args:
            member: whose.
            count: how many it has given, this one included.
        """
        self._write(_beat(member), count)

    def beats(self, members: Iterable[Member]) -> dict[Member, int]:
        """How many signs of life each member has given; 0 for one that has given none."""
        return {member: self._read(_beat(member), int) or 0 for member in members}

    # Joining.

    def new_incarnation(self, server: Server) -> int:
        """A number for a new life of a server, given to nobody else; they start from 1."""
        return self._store.add(f"incarnation/{server}", 1)

    def request_join(self, request: JoinRequest) -> None:
        """Ask to be admitted, or say how the request stands now."""
        self._write(_join(request.member), request)
        self._store.add(_ASKED, 1)

    def asked(self) -> int:
        """A number that changes with every request; to look at it costs less than to look at all requests."""
        return self._store.add(_ASKED, 0)

    def joins(self) -> tuple[JoinRequest, ...]:
        """All requests to be admitted that were made with the run's token; any others are of no account."""
        found = []
        for key in self._store.keys(_join("")):
            try:
                request = self._read(key, JoinRequest)
            except ControlError:
                continue
            if request is not None:
                found.append(request)
        return tuple(found)

    def offer(self, epoch: int, member: Member, attempt: int) -> None:
        """Say to a member that asks that its stage's state is ready for it."""
        self._write(_offer(epoch, member, attempt), True)

    def wait_offer(self, epoch: int, member: Member, attempt: int, timeout: float) -> bool:
        """Wait until somebody has said so, or a time in seconds is over. The connection is busy for that long."""
        key = _offer(epoch, member, attempt)
        return self._store.wait(key, timeout) and (self._read(key, bool) or False)

    # Plans.

    def publish_plan(self, epoch: int, author: Member, plan: bytes) -> None:
        """Offer a plan for an epoch, for the verdict that the same member is about to propose."""
        self._write(_plan(epoch, author), plan)

    def plan(self, epoch: int, author: Member) -> bytes | None:
        """The plan that a member offered for an epoch."""
        return self._read(_plan(epoch, author), bytes)

    # The end.

    def finish(self, epoch: int, member: Member) -> None:
        """Say that a member has reached the end of training in an epoch."""
        self._write(_finished(member), epoch)

    def need_nobody(self, epoch: int, members: Iterable[Member]) -> bool:
        """Whether each of these has reached the end of training in this very epoch, or is dead."""
        return all(self._read(_finished(each), int) == epoch or self.death(each) for each in members)

    # Tidiness.

    def forget(self, epoch: int, members: Collection[Member]) -> None:
        """Delete what only earlier epochs needed, so that the store does not grow with the number of failures.

        Args:
            epoch: the epoch that the run is in.
            members: who is in it, or still asks to be; what is kept about anybody else goes.
        """
        names = {str(member) for member in members}
        # Requests first: a joiner whose death is forgotten must not look as if it was waiting.
        for key in sorted(self._store.keys(""), key=lambda key: not key.startswith(_join(""))):
            kind, _, rest = key.partition("/")
            name = rest.partition("/")[0]
            if (kind in _OF_EPOCHS and name.isdecimal() and int(name) < epoch) or (
                kind in _OF_MEMBERS and rest not in names
            ):
                self._store.delete(key)

    def _put_once(self, key: str, content: _T) -> _T:
        stored = self._store.compare_set(key, b"", seal(self._token, key, content))
        return unseal(self._token, key, stored, type(content))

    def _write(self, key: str, content: object) -> None:
        self._store.set(key, seal(self._token, key, content))

    def _read(self, key: str, form: type[_T]) -> _T | None:
        sealed = self._store.get(key)
        return None if sealed is None else unseal(self._token, key, sealed, form)


# ``epoch/<n>/`` is where the process groups of a view meet.
_OF_EPOCHS = {"alarm", "bell", "report", "plan", "epoch", "offer"}
_OF_MEMBERS = {"death", "beat", "join", "finished"}


def _bell(epoch: int) -> str:
    return f"bell/{epoch}"


def _alarm(epoch: int) -> str:
    return f"alarm/{epoch}"


def _report(epoch: int, member: Member | str) -> str:
    return f"report/{epoch}/{member}"


def _plan(epoch: int, author: Member) -> str:
    return f"plan/{epoch}/{author}"


def _offer(epoch: int, member: Member, attempt: int) -> str:
    return f"offer/{epoch}/{member}/{attempt}"


def _finished(member: Member) -> str:
    return f"finished/{member}"


def _death(member: Member | str) -> str:
    return f"death/{member}"


def _beat(member: Member) -> str:
    return f"beat/{member}"


def _join(member: str) -> str:
    return f"join/{member}"
