"""The hosts that one watches, those that watch it, and when the store has to be asked about either."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.control.board.heartbeat_board import Beat, Glance
from recycle.control.host.direct_heartbeats import DirectHeartbeatSocket, Heard, clock_number, clock_seconds
from recycle.control.host.heartbeats import RisingCounts, Watchlist
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Address
from recycle.control.membership.participant import Participant

WATCHED = 2
"""How many hosts each one watches, so that one is still watched when its neighbour dies as well."""

MOST_WATCHED = 96
"""How many it watches at most: one request to etcd asks for all of them that do not answer."""

MOMENT = 2
"""Beats after a host was heard directly within which it can have given the store one more sign before it was lost."""


def ring(participants: Iterable[Participant], homes: Mapping[Participant, str]) -> tuple[str, ...]:
    """The hosts of a view, in an order on which all agree.

    Args:
        participants: all that are in the view, in its order.
        homes: the host of each, as far as it is known; empty if that was given up.
    """
    return tuple(dict.fromkeys(homes[each] for each in participants if homes.get(each)))


def watched(hosts: tuple[str, ...], own: str, gone: Collection[str], suspects: int = 0) -> tuple[str, ...]:
    """Whose signs of life a host watches: the next ones in the ring that are not known to be gone.

    They are more for each that is silent, so that many neighbours, such as a rack, are missed in a few silences, and
    so that a host that lives is heard.

    Args:
        hosts: the ring.
        own: the host that watches; none if it is not in the ring.
        gone: whose silence was noticed in this view.
        suspects: how many of the others are silent, and not yet for the limit.
    """
    return following(hosts, own, gone, min(WATCHED * (1 + len(gone) + suspects), MOST_WATCHED))


def following(hosts: tuple[str, ...], own: str, gone: Collection[str], count: int) -> tuple[str, ...]:
    """The next hosts in a ring, at most so many, without those that are gone; see ``watched``."""
    place = hosts.index(own) if own in hosts else 0
    others = (each for each in hosts[place:] + hosts[:place] if each != own and each not in gone)
    return tuple(each for each, _ in zip(others, range(count), strict=False))


class HostPlace(NamedTuple):
    """What a host knows of the view.

    Attributes:
        epoch: of it.
        ring: its hosts.
        gone: those whose silence was noticed.
        suspects: how many others are silent, and not yet for the limit.
        has_guests: whether anybody here is in no view yet, and is looked for in the store.
    """

    epoch: int
    ring: tuple[str, ...]
    gone: frozenset[str]
    suspects: int
    has_guests: bool


class Neighbours:
    """What a host knows of its neighbours.

    It hails those that it watches. A host lives if it answers, or gives its sign in the store, which a stranger may
    undo. Where the store is dear, it is asked only about one that does not answer, told of this host while one that
    should watch it does not hear it, and looked at now and then for what else changes.

    Args:
        host: what it is called.
        durations: how often to look, and after which silence a host is dead.
        direct: how hosts hear each other directly; None where they do not.
    """

    def __init__(self, host: str, durations: Durations, direct: DirectHeartbeatSocket | None) -> None:
        self._host = host
        self._durations = durations
        self._direct = direct
        self._undone = Watchlist[str](durations.silence)
        self.forget()

    def forget(self) -> None:
        """Know nothing: it may be another store."""
        self._asked: tuple[str, ...] = ()
        self._beats: dict[str, Beat] = {}
        # Of what the store had. Of a host that is watched, only a stranger deletes the sign, or puts an older one back.
        self._rising = RisingCounts[str]()
        self._missing: frozenset[str] = frozenset()
        # The newest answers, however old, and where they came from.
        self._answers: dict[str, tuple[Heard, Address | None]] = {}
        self._looks_at = self._tells_at = float("-inf")

    def glance(self, board: Board, now: float, place: HostPlace) -> Glance | None:
        """Give this host's sign of life, and look for those of its neighbours.

        Args:
            board: of the store.
            now: the time in seconds.
            place: of this host.

        Returns:
            What the store has; None where it was not asked.
        """
        self._asked = watched(place.ring, self._host, place.gone, place.suspects)
        number = clock_number(now)
        if self._direct is None:
            return self._look(board, Beat(number), self._asked, place.epoch)
        heartbeats = self._direct.heartbeats
        heard = heartbeats.heard(now)
        known = {each: beat for each, beat in self._beats.items() if each in heard}
        self._note({each: Beat(heard[each].number, beat.address) for each, beat in known.items()})
        self._answers |= {each: (heard[each], beat.address) for each, beat in known.items()}
        unheard = [each for each in self._asked if not heartbeats.spares or each not in heard]
        tells = not heartbeats.spares or now >= self._tells_at or not self._is_heard(now, place)
        glance = None
        if tells or unheard or now >= self._looks_at or heartbeats.newest_epoch > place.epoch:
            beat = Beat(number, self._direct.address) if tells else None
            glance = self._look(board, beat, unheard, place.epoch)
            heartbeats.reach_store(now)
            # If those that answer are looked for there, they give signs there too, unless a stranger undoes them.
            looked = {
                each: glance.beats[each].count if each in glance.beats else 0 for each in unheard if each in heard
            }
            if self._undone.observe(now, looked):
                board.beats.warn_of_undone()
            # Of all hosts, one looks in each beat, for what anybody can see to.
            self._looks_at = now + min(len(place.ring) * self._durations.beat, self._durations.rare_look)
            self._tells_at = now + self._durations.rare_beat if tells else self._tells_at
        signs = {each: self._beats[each] for each in self._asked if each in self._beats}
        heartbeats.aim({each: beat.address for each, beat in signs.items() if beat.address is not None}, place.epoch)
        return glance

    def counts(self, board: Board, hosts: tuple[str, ...]) -> dict[str, int]:
        """What hosts have counted, that were asked about in this glance or are now; 0 for one that gave no sign.

        A host whose sign was taken away, or exchanged for an older one, is left out: that proves nothing. But one that
        has answered directly is asked again, and its silence counts.

        Args:
            board: of the store.
            hosts: which.
        """
        # The view may have changed since.
        if others := [each for each in hosts if each not in self._asked]:
            self._note_stored(board.beats.of_hosts(others))
        self._beats = {each: beat for each, beat in self._beats.items() if each in hosts}
        self._answers = {each: answer for each, answer in self._answers.items() if each in hosts}
        seen = [each for each in hosts if each not in self._missing or self._has_answered(each)]
        return {each: self._beats[each].count if each in self._beats else 0 for each in seen}

    def heard_at(self) -> dict[str, float]:
        """When the newest signs of those were given that were heard directly a moment before them, in seconds.

        Such a sign may be found in the store much later: its host's clock tells how much newer than the answer it is.
        """
        found: dict[str, float] = {}
        if self.waits_for_store:
            return found
        for host, (answer, _) in self._answers.items():
            if self._has_answered(host):
                later = clock_seconds(self._beats[host].count - answer.number)
                if later <= MOMENT * self._durations.beat:
                    found[host] = answer.time + later
        return found

    def deaf(self, now: float) -> float:
        """The longest time in seconds, since this was asked last, for which no host could be heard directly."""
        if self._direct is None or self.waits_for_store:
            return float("inf")
        return self._direct.heartbeats.deaf(now)

    def unheard(self, now: float) -> float:
        """The same for which no host was heard; 0 if a pause of the store is no host's silence anyway."""
        return 0.0 if self._direct is None or self.waits_for_store else self._direct.heartbeats.unheard(now)

    def close(self) -> None:
        """Answer nobody any more."""
        if self._direct is not None:
            self._direct.close()

    @property
    def waits_for_store(self) -> bool:
        """Whether nobody is heard for long while the store hangs, so that its pause is nobody's silence."""
        return self._direct is None or not self._direct.heartbeats.spares

    def _has_answered(self, host: str) -> bool:
        """Whether the agent that speaks for a host has answered directly."""
        answered, beat = self._answers.get(host), self._beats.get(host)
        return answered is not None and beat is not None and beat.address == answered[1]

    def _is_heard(self, now: float, place: HostPlace) -> bool:
        """Whether all who should watch this host hear it, and nobody else has to."""
        assert self._direct is not None, "hosts hear each other"
        # The first one tells the store whoever hears it: there it is seen whether the run goes on.
        # Others may watch it as well, if they have missed more.
        watchers = following(place.ring[::-1], self._host, place.gone, WATCHED) if self._host in place.ring[1:] else ()
        heartbeats = self._direct.heartbeats
        return bool(watchers) and not place.has_guests and all(heartbeats.is_heard_by(each, now) for each in watchers)

    def _look(self, board: Board, beat: Beat | None, hosts: Collection[str], epoch: int) -> Glance:
        glance = board.beats.glance(self._host, beat, tuple(hosts), epoch)
        risen = self._note_stored(glance.beats)
        self._missing = frozenset(each for each in hosts if each in self._beats and each not in risen)
        return glance

    def _note_stored(self, beats: Mapping[str, Beat]) -> Collection[str]:
        """Take note of signs that the store has; gives whose are not older than those that it had before."""
        risen = self._rising.risen({each: beat.count for each, beat in beats.items()})
        self._note({each: beats[each] for each in risen})
        return risen

    def _note(self, beats: Mapping[str, Beat]) -> None:
        """Take note of signs, unless a newer one was heard of the same leader."""
        for host, beat in beats.items():
            known = self._beats.get(host)
            if known is None or beat.address is None or beat.address != known.address or beat.count > known.count:
                self._beats[host] = beat
