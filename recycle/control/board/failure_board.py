"""Alarms, what halted members hold, and who is dead, as they are kept in the store."""

from collections.abc import Sequence

from recycle.control.board import keys
from recycle.control.board.parts import BoardPart
from recycle.control.membership.messages import Alarm, Death, Report, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.control.store.log import Log


class FailureBoard(BoardPart):
    """Alarms, what halted members hold, and who is dead."""

    def raise_alarm(self, epoch: int, cause: str, source: str, deaths: Sequence[Death] = ()) -> Alarm:
        """Raise the alarm of an epoch; gives the one that was raised first.

        Args:
            epoch: which.
            cause: why it cannot go on.
            source: who says so.
            deaths: that are told before; who waits for these members as leaders is called at the same time.
        """
        if deaths:
            self.log(epoch).append(*deaths)
        raised = self._sealed.write_once(keys.alarm(epoch), Alarm(epoch, source, cause))
        call = keys.call(epoch)
        self._sealed.plain.set_many({**_bells(epoch, deaths), call: self._sealed.seal(call, raised)})
        return raised

    def call_to(self, alarm: Alarm) -> None:
        """Call all members to an alarm, in the place of who has raised it."""
        self._sealed.write(keys.call(alarm.epoch), alarm)

    def alarm(self, epoch: int) -> Alarm | None:
        """The alarm of an epoch, if one was raised."""
        return self._sealed.read(keys.alarm(epoch), Alarm)

    def wait_call(self, epoch: int, timeout: float) -> tuple[bool, Alarm | None]:
        """Wait until there is an alarm, or somebody asks to be let in.

        Who raised an alarm may have died before it called: so the alarm has to be looked at when the time is over, too.
        The connection is busy for that long.

        Returns:
            Whether somebody called before some seconds were over, and the alarm if it came with that.
        """
        key = keys.call(epoch)
        stored = self._sealed.plain.hear(key, timeout)
        return stored is not None, self._sealed.find(key, stored, Alarm)

    def wait_alarm(self, epoch: int, timeout: float) -> Alarm | None:
        """The same as alarm, after it was raised or a time in seconds is over. The connection is busy for that long."""
        return self._sealed.read(keys.alarm(epoch), Alarm, timeout)

    def tell_stop(self, epoch: int, participant: Participant, place: int) -> None:
        """Say how far a member's rank was when it heard the alarm of an epoch."""
        self._sealed.write(keys.stop(epoch, participant), place)

    def wait_stop(self, epoch: int, participant: Participant, timeout: float) -> int | None:
        """What was said of that, after it was or a time in seconds is over. The connection is busy for that long."""
        return self._sealed.read(keys.stop(epoch, participant), int, timeout)

    def tell_between(self, epoch: int, member: Member) -> None:
        """Say that a member was in no iteration when it heard the alarm of an epoch, and may wait for a disk."""
        self._sealed.write(keys.between(epoch, member), True)

    def is_between(self, epoch: int, member: Member) -> bool:
        """Whether that was said."""
        return self._sealed.read(keys.between(epoch, member), bool) is True

    def log(self, epoch: int) -> Log[Report | Death]:
        """What was told in an epoch."""
        return Log(self._sealed, keys.log(epoch), Report | Death)  # type: ignore[arg-type]  # a union is a form too

    def publish_report(self, report: Report) -> None:
        """Tell who leads what this member holds."""
        self.log(report.epoch).append(report)

    def publish_death(self, death: Death) -> Death:
        """Declare a member dead; gives what was said first."""
        return self._sealed.write_once(keys.death(death.member), death)

    def publish_deaths(self, deaths: Sequence[Death]) -> list[Death]:
        """The same for some members, of whom many may have died at once."""
        return self._sealed.write_all_once({keys.death(each.member): each for each in deaths})

    def tell_deaths(self, epoch: int, *deaths: Death) -> None:
        """Tell who leads in an epoch that members are dead; if one of them was the leader, all who wait for it."""
        self.log(epoch).append(*deaths)
        self._sealed.plain.set_many(_bells(epoch, deaths))

    def unheard(self, verdict: Verdict) -> tuple[Death, ...]:
        """The deaths of members of a view of which its proposer may not have heard.

        Who is declared dead is told in the log of an epoch before it is looked whether there is a newer view. So what
        the proposer has missed is in the log when its verdict is read. Who has looked after it was stored has done so
        for all who have the verdict from there.
        """
        if verdict.unheard is not None:
            return verdict.unheard
        told = [entry for _, entry in self.log(verdict.epoch - 1).read(verdict.heard).found]
        if not (told or verdict.joined):
            return ()
        deaths = {each.member: each for each in told if isinstance(each, Death)}
        # Those who joined were in no view when they died.
        found = [deaths.get(name) for name in verdict.members if name not in verdict.joined]
        found += [self.death(Member.parse(name)) for name in verdict.joined]
        return tuple(each for each in found if each is not None)

    def tell_gone(self, participant: Participant) -> None:
        """Nothing of a rank runs any more, nor anything that it has started."""
        self._sealed.write(keys.gone(participant), True)

    def wait_gone(self, participant: Participant, timeout: float) -> bool:
        """Whether that was said of a rank of a dead member, after it was or a time in seconds is over."""
        return self._sealed.read(keys.gone(participant), bool, timeout) is True

    def death(self, member: Member) -> Death | None:
        """How a member died, if it was declared dead."""
        return self._sealed.read(keys.death(member), Death)


def _bells(epoch: int, deaths: Sequence[Death]) -> dict[str, bytes]:
    """What ends all waits for dead leaders."""
    dead = [Member.parse(each.member) for each in deaths]
    # They may also have died when they had begun this epoch, before they rang for it.
    return {keys.turn(waited, each): b"" for waited in (epoch - 1, epoch) for each in dead}
