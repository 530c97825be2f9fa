"""Another user of the machine who has no token: ``vandal.py HOST PORT SEED`` strikes at the store until it is ended.

It deletes, writes over, adds and puts back older values, over all keys that are there, drawn by the seed; and says
now and then how often. SIGUSR1 has it pause, and go on.
"""

import os
import random
import signal
import sys
import time
from collections import defaultdict
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from harness.strangers import become_stranger

MANY = 100
"""Strikes after which it says how many there were."""

PAUSE = 0.005
"""Seconds between two strikes."""

NONE = b"\0none"


class Vandal:
    """One who strikes.

    Args:
        store: at which.
        seed: by which it draws what it does.
    """

    def __init__(self, store: TCPStore, seed: int) -> None:
        self.strikes = 0
        self._store = store
        self._drawn = random.Random(seed)
        self._seen: dict[str, list[bytes]] = defaultdict(list)

    def strike(self) -> None:
        """Do something to a key that is there."""
        keys = sorted(self._store.list_keys())
        # What is looked at now can be put back later.
        self._note(self._drawn.choice(keys))
        key = self._drawn.choice(keys)
        self._drawn.choice([self._delete, self._write_over, self._add, self._replay, self._exchange, self._count])(key)
        self.strikes += 1

    def _note(self, key: str) -> None:
        found = self._store.compare_set(key, NONE, NONE)  # type: ignore[arg-type]  # the stubs say str
        if found != NONE and found not in self._seen[key]:
            self._seen[key].append(found)

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # the stubs say str

    def _delete(self, key: str) -> None:
        self._store.delete_key(key)

    def _write_over(self, key: str) -> None:
        self._set(key, self._drawn.randbytes(self._drawn.choice([0, 1, 40, 4000])))

    def _add(self, key: str) -> None:
        head, slash, last = key.rpartition("/")
        number = int(last) + self._drawn.randrange(1, 100) if last.isdigit() else self._drawn.randrange(100)
        self._set(self._drawn.choice([f"{head}{slash}{number}", f"{key}/{number}"]), self._drawn.randbytes(40))

    def _replay(self, key: str) -> None:
        self._note(key)
        if self._seen[key]:
            self._set(key, self._drawn.choice(self._seen[key]))

    def _exchange(self, key: str) -> None:
        others = [each for values in self._seen.values() for each in values]
        if others:
            self._set(key, self._drawn.choice(others))

    def _count(self, key: str) -> None:
        value = self._drawn.choice([b"0", b"-7", b"12", b"60000", b"1000000000000", b"abc"])
        self._set(self._drawn.choice([key, key.rpartition("/")[0] or key]), value)


def say(text: str) -> None:
    """Tell who has started this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(host: str, port: int, seed: int) -> None:
    """Strike until told to end, or the store is gone."""
    if os.geteuid() == 0:
        become_stranger()
    ends: list[int] = []
    turns: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    signal.signal(signal.SIGUSR1, lambda number, _: turns.append(number))
    vandal = Vandal(TCPStore(host, port, is_master=False, timeout=timedelta(minutes=1)), seed)
    said = -1
    try:
        while not ends:
            turn = len(turns)
            if turn != said:
                say(f"pause {turn // 2}" if turn % 2 else f"beginning {turn // 2}")
                said = turn
            if turn % 2 == 0:
                vandal.strike()
                if vandal.strikes % MANY == 0:
                    say(f"{vandal.strikes} strikes")
            time.sleep(PAUSE)
    except DistError:
        pass  # the run has ended
    say("it ends")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
