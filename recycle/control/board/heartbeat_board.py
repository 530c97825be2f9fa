"""Which host each member is on, and the hosts' signs of life, as they are kept in the store."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from recycle.control.board import keys
from recycle.control.board.parts import BoardPart
from recycle.control.membership.messages import Address, Alarm, Number
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host's sign of life.

    Attributes:
        count: its clock, in milliseconds.
        address: where it answers hails; None where it does not.
    """

    count: Number
    address: Address | None = None


class Glance(NamedTuple):
    """What one who speaks for a host sees.

    Attributes:
        epoch: the number of the newest verdict, as it was announced last.
        beats: the newest signs of other hosts, without those that have given none.
        uncalled: an alarm to which nobody has called the members: who raised it may have died before it could.
    """

    epoch: int | None
    beats: dict[str, Beat]
    uncalled: Alarm | None


class BeatBoard(BoardPart):
    """Which host each member is on, and the hosts' signs of life."""

    def settle(self, participant: Participant, host: str) -> None:
        """Say which host a member's rank is on."""
        self._sealed.write(keys.home(participant), host)

    def homes(self, participants: Iterable[Participant]) -> dict[Participant, str]:
        """Which host each one is on, without those of whom nobody has said it."""
        return self._sealed.read_all({each: keys.home(each) for each in participants}, str)

    def glance(self, host: str, beat: Beat | None, hosts: Sequence[str] = (), epoch: int = -1) -> Glance:
        """Give a host's sign of life, and look at what changes though nothing fails, in one request where it can be.

        Args:
            host: whose sign.
            beat: another one than the last; None where it is only looked. Where nobody's sign is looked at either, what
                changed a moment ago may be overlooked.
            hosts: whose signs are looked at.
            epoch: whose alarm is looked for.
        """
        sealed, alarm = self._sealed, keys.alarm(epoch)
        wanted = [keys.EPOCH, keys.call(epoch), alarm, *map(keys.beat, hosts)]
        if beat is None:
            found = sealed.plain.get_many(wanted) if hosts else sealed.plain.peek(wanted)
        else:
            given = keys.beat(host)
            found = sealed.plain.exchange({given: sealed.seal(given, beat)}, wanted)
        newest, called, raised, *signs = found
        read = {each: sealed.find(keys.beat(each), sign, Beat) for each, sign in zip(hosts, signs, strict=True)}
        beats = {each: sign for each, sign in read.items() if sign is not None}
        uncalled = sealed.find(alarm, raised, Alarm) if called is None else None
        return Glance(sealed.find(keys.EPOCH, newest, int), beats, uncalled)

    def warn_of_undone(self) -> None:
        """Tell the user once that a host answers whose signs of life do not come through the store."""
        self._sealed.warn(
            "a stranger writes to the store: the signs of life of a host stand still there. "
            "The host answers directly, and counts as alive"
        )

    def of_hosts(self, hosts: Iterable[str]) -> dict[str, Beat]:
        """The newest sign of each host, without those that have given none."""
        return self._sealed.read_all({each: keys.beat(each) for each in hosts}, Beat)

    def counts(self, members: Iterable[Member], ranks: int = 1) -> dict[Member, int]:
        """What each member's host has counted; 0 where it is not known, or has given no sign.

        Args:
            members: which.
            ranks: of each. Where they are on several hosts, what the least of these has counted: all must go on.
        """
        participants = {each: Participant.all_of(each, ranks) for each in members}
        homes = self.homes([rank for each in participants.values() for rank in each])
        counts = {host: beat.count for host, beat in self.of_hosts(set(homes.values())).items()}
        return {
            member: min(counts.get(homes[each], 0) if each in homes else 0 for each in own)
            for member, own in participants.items()
        }
