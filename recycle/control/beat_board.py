"""Which host each member is on, and the hosts' signs of life, as they are kept in the store."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recycle.control import keys
from recycle.control.messages import Alarm
from recycle.control.participant import Participant
from recycle.control.sealed_store import SealedStore
from recycle.control.view import Member


class Glance(NamedTuple):
    """What one who speaks for a host sees.

    Attributes:
        epoch: the number of the newest verdict, as it was announced last.
        counts: what other hosts have counted; 0 for one that has given no sign.
        uncalled: an alarm to which nobody has called the members: who raised it may have died before it could.
    """

    epoch: int | None
    counts: dict[str, int]
    uncalled: Alarm | None


class BeatBoard:
    """Which host each member is on, and the hosts' signs of life.

    Args:
        sealed: the store.
    """

    def __init__(self, sealed: SealedStore) -> None:
        self._sealed = sealed

    def settle(self, participant: Participant, host: str) -> None:
        """Say which host a member's rank is on."""
        self._sealed.write(keys.home(participant), host)

    def homes(self, participants: Iterable[Participant]) -> dict[Participant, str]:
        """Which host each one is on, without those of whom nobody has said it."""
        return self._sealed.read_all({each: keys.home(each) for each in participants}, str)

    def glance(self, host: str, count: int, hosts: Sequence[str] = (), epoch: int = -1) -> Glance:
        """Give a host's sign of life, and look at what changes though nothing fails, in one request where it can be.

        Args:
            host: whose sign.
            count: another one than at the last time.
            hosts: whose signs are looked at.
            epoch: whose alarm is looked for.
        """
        sealed, given = self._sealed, keys.beat(host)
        alarm = keys.alarm(epoch)
        wanted = [keys.EPOCH, keys.call(epoch), alarm, *map(keys.beat, hosts)]
        newest, called, raised, *counts = sealed.plain.exchange({given: sealed.seal(given, count)}, wanted)
        pairs = zip(hosts, counts, strict=True)
        read = {each: sealed.find(keys.beat(each), found, int) or 0 for each, found in pairs}
        uncalled = sealed.find(alarm, raised, Alarm) if called is None else None
        return Glance(sealed.find(keys.EPOCH, newest, int), read, uncalled)

    def of_hosts(self, hosts: Iterable[str]) -> dict[str, int]:
        """What each host has counted; 0 for one that has given no sign."""
        wanted = {each: keys.beat(each) for each in hosts}
        return dict.fromkeys(wanted, 0) | self._sealed.read_all(wanted, int)

    def counts(self, members: Iterable[Member], ranks: int = 1) -> dict[Member, int]:
        """What each member's host has counted; 0 where it is not known, or has given no sign.

        Args:
            members: which.
            ranks: of each. Where they are on several hosts, what the least of these has counted: all must go on.
        """
        participants = {each: Participant.all_of(each, ranks) for each in members}
        homes = self.homes([rank for each in participants.values() for rank in each])
        counts = self.of_hosts(set(homes.values()))
        return {
            member: min(counts[homes[each]] if each in homes else 0 for each in own)
            for member, own in participants.items()
        }
