"""Another user without a token: ``freezer.py HOST PORT`` undoes each new sign of life of all hosts in a store.

What it puts back is the sign that it has read first, with its seal.
"""

import os
import sys
import time
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from harness.strangers import become_stranger

SIGNS = "beat/"
NONE = b"\0none"


def main(host: str, port: int) -> None:
    """Go on until the store is gone."""
    if os.geteuid() == 0:
        become_stranger()
    store = TCPStore(host, port, is_master=False, timeout=timedelta(minutes=1))
    frozen: dict[str, bytes] = {}
    try:
        while True:
            for key in [each for each in store.list_keys() if SIGNS in each and each not in frozen]:
                frozen[key] = store.compare_set(key, NONE, NONE)  # type: ignore[arg-type]  # the stubs say str
                sys.stdout.write(f"{len(frozen)} hosts are frozen\n")
                sys.stdout.flush()
            until = time.monotonic() + 1.0
            while frozen and time.monotonic() < until:
                for key, value in frozen.items():
                    store.set(key, value)  # type: ignore[arg-type]
    except DistError:
        pass  # the run has ended


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
