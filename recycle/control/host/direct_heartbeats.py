"""Direct heartbeats: a host asks another one whether it lives.

That spares a store that is dear, and where a stranger undoes signs of life in the store, the answer is believed.
A host hails those that it watches in every beat, and is answered. In the next hail it says which answer it has heard:
so the other one knows as well that it is heard, and need not tell the store. Both go by times on their own clocks,
which come back to them: what was recorded on the way and is sent again later counts for nothing.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from recycle.control.membership.addresses import family_of
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import Address, Epoch, Number, read_early, seal, unseal
from recycle.threads import start_thread

_LARGEST = 1 << 12
_MILLISECONDS = 1000
_SOON = 1.0

REACHED = 4
"""So many times the limit may pass after the store was reached. It is looked at after three of them at the latest: with
hundreds of hosts, looking is most of what it is asked for."""

REACHED_OFTEN = 0.5
"""The same where it is looked at in every beat."""


class DirectHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one host tells another.

    Attributes:
        host: who tells it.
        number: its clock, in milliseconds.
        heard: the other one's clock, as it was heard last; 0 for never.
        epoch: the newest that it knows of.
        is_answer: whether it answers a hail; no answer is answered.
    """

    host: Annotated[str, msgspec.Meta(max_length=200)]
    number: Number
    heard: Number
    epoch: Epoch
    is_answer: bool = False


read_early(DirectHeartbeat)


class Heard(NamedTuple):
    """An answer.

    Attributes:
        number: of the host that has answered.
        time: when it came, in seconds.
    """

    number: int
    time: float


_NEVER = Heard(0, 0.0)


class _LongestGap:
    """The longest time in seconds in which something did not happen, since this was asked for last.

    Args:
        since: when it has happened, for a start.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._longest = 0.0

    def end(self, now: float) -> None:
        """It happens."""
        self._longest, self._since = max(self._longest, now - self._since), now

    def take(self, now: float) -> float:
        """The longest one, up to now."""
        longest, self._longest = max(self._longest, now - self._since), 0.0
        return longest


class DirectHeartbeats:
    """What one host hears of others, and they of it. It does no input or output, and two threads may use it.

    It answers only while the store was reached a moment ago: who is cut off from where views are decided is to be
    missed, though it lives.

    Args:
        host: what it is called.
        token: the run's.
        silence: the limit, in seconds.
        spares: whether hosts that hear each other ask little of the store; otherwise they ask it in every beat too.

    Attributes:
        spares: the same.
    """

    def __init__(self, host: str, token: str, silence: float, *, spares: bool = True) -> None:
        self.spares = spares
        self._patience = (REACHED if spares else REACHED_OFTEN) * silence
        self._host = host
        self._token = token
        self._silence = silence
        self._lock = threading.Lock()
        self._epoch, self._newest = -1, -1
        self._deaf, self._unheard = _LongestGap(float("inf")), _LongestGap(float("-inf"))
        self._reached = float("-inf")
        self._targets: dict[str, Address] = {}
        # The newest answer of each host that was hailed.
        self._answers: dict[str, Heard] = {}
        # Which of the own numbers each host that hails has heard.
        self._heard_by: dict[str, int] = {}

    def reach_store(self, now: float) -> None:
        """The store has answered what it was asked at a time in seconds."""
        with self._lock:
            self._reached = now

    @property
    def newest_epoch(self) -> int:
        """The newest that this host knows of, or anybody that it has heard."""
        with self._lock:
            return max(self._newest, self._epoch)

    def aim(self, targets: Mapping[str, Address], epoch: int) -> None:
        """Hail some hosts from now on.

        Args:
            targets: their addresses; what was heard from others is forgotten.
            epoch: that this host knows of.
        """
        with self._lock:
            self._epoch = epoch
            kept = {each for each, address in targets.items() if self._targets.get(each) == address}
            self._answers = {each: heard for each, heard in self._answers.items() if each in kept}
            self._targets = dict(targets)

    def calls(self, now: float) -> list[tuple[bytes, Address]]:
        """The hails of a moment, and where each goes."""
        with self._lock:
            self._deaf.end(now)
            return [
                (self._sealed(now, each, self._answers.get(each, _NEVER).number), address)
                for each, address in self._targets.items()
            ]

    def take(self, sealed: bytes, now: float) -> bytes | None:
        """Take what has come; gives the answer, if it is answered.

        Args:
            sealed: what has come, from anybody.
            now: the time in seconds.
        """
        try:
            hail = unseal(self._token, _key(self._host), sealed, DirectHeartbeat)
        except ControlError:
            return None  # a stranger's, or another host's that had the address before
        with self._lock:
            clock = clock_number(now)
            if not hail.is_answer:
                if hail.heard <= clock:
                    self._heard_by[hail.host] = max(hail.heard, self._heard_by.get(hail.host, 0))
                self._newest = max(self._newest, hail.epoch)
                if now - self._reached > self._patience:
                    return None
                return self._sealed(now, hail.host, hail.number, is_answer=True)
            if hail.host in self._targets and 0 <= clock - hail.heard <= self._silence / 2 * _MILLISECONDS:
                self._answers[hail.host] = Heard(hail.number, now)
                self._unheard.end(now)
                self._newest = max(self._newest, hail.epoch)
            return None

    def deaf(self, now: float) -> float:
        """The longest time in seconds, since this was asked last, for which this host sent no hail."""
        with self._lock:
            return self._deaf.take(now)

    def unheard(self, now: float) -> float:
        """The longest time in seconds, since this was asked last, for which no host has answered."""
        with self._lock:
            return self._unheard.take(now)

    def heard(self, now: float) -> dict[str, Heard]:
        """The newest answers of the hosts that have answered in the last half of the limit."""
        with self._lock:
            return {each: heard for each, heard in self._answers.items() if now - heard.time <= self._silence / 2}

    def is_heard_by(self, host: str, now: float) -> bool:
        """Whether a host has said that it has heard this one in the last third of the limit."""
        with self._lock:
            heard = self._heard_by.get(host)
        return heard is not None and clock_number(now) - heard <= self._silence / 3 * _MILLISECONDS

    def _sealed(self, now: float, other: str, heard: int, *, is_answer: bool = False) -> bytes:
        return seal(
            self._token, _key(other), DirectHeartbeat(self._host, clock_number(now), heard, self._epoch, is_answer)
        )


class DirectHeartbeatSocket:
    """Direct heartbeats over UDP, at any free port, from a thread, so that hosts hear each other while the store hangs.

    Hails reach other hosts in every beat, whatever the one that speaks for this host waits for.

    Args:
        heartbeats: what is heard.
        host: the address of this machine at which others reach it.
        beat: seconds between two hails.
        clock: that does not go back, in seconds.

    Attributes:
        heartbeats: as above.
        address: where others reach this host.

    Raises:
        OSError: the address is none of this machine's, or there is no thread for it.
    """

    def __init__(
        self, heartbeats: DirectHeartbeats, host: str, beat: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.heartbeats = heartbeats
        self._beat = beat
        self._clock = clock
        self._socket = socket.socket(family_of(host), socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self.address: Address = self._socket.getsockname()[:2]
        self._stopped = False
        self._thread = start_thread(self._run, "direct heartbeats", 0)

    def close(self) -> None:
        """Hear and answer nobody any more."""
        self._stopped = True
        with suppress(OSError):
            self._socket.sendto(b"", self.address)
        self._thread.join(_SOON)

    def _run(self) -> None:
        # Where nothing can be heard any more, the store is told again.
        with self._socket, suppress(OSError):
            due = time.monotonic()
            while not self._stopped:
                if (left := due - time.monotonic()) <= 0:
                    due = time.monotonic() + self._beat
                    for sealed, address in self.heartbeats.calls(self._clock()):
                        self._send(sealed, address)
                    continue
                self._socket.settimeout(left)
                with suppress(TimeoutError):
                    sealed, address = self._socket.recvfrom(_LARGEST)
                    if answer := self.heartbeats.take(sealed, self._clock()):
                        self._send(answer, address)

    def _send(self, sealed: bytes, address: Address) -> None:
        # Who cannot be reached is not heard.
        with suppress(OSError):
            self._socket.sendto(sealed, address)


def _key(host: str) -> str:
    """Of a hail's seal: so that it can be taken by this host alone."""
    return f"hail/{host}"


def clock_seconds(number: int) -> float:
    """A time as hosts tell it each other, in seconds."""
    return number / _MILLISECONDS


def clock_number(now: float) -> int:
    """A time in seconds as hosts tell it each other, in milliseconds."""
    return int(now * _MILLISECONDS)
