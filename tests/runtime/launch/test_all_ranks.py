"""All ranks of a server are served from one command, in a process each."""

import os
import signal
import threading
import time

import pytest

from recycle.errors import EndedBySignal
from recycle.runtime.launch.process.all_ranks import serve_all_ranks


def test_each_rank_serves_in_a_process_of_its_own(tmp_path):
    def serve(rank, _):
        (tmp_path / str(rank.number)).write_text(f"{os.getpid()} of {rank.size}")
        return 7 + rank.number

    assert serve_all_ranks(3, serve) == 7
    served = [(tmp_path / str(number)).read_text() for number in range(3)]
    assert len(set(served)) == 3
    assert served[0] == f"{os.getpid()} of 3"


def test_who_is_told_to_end_tells_the_workers_of_all_ranks(tmp_path):
    """Each worker is a process that ends when it is told to, and says so."""

    def serve(rank, began):
        worker = os.fork()
        if worker == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
            (tmp_path / f"worker-{rank.number}").touch()
            # A pause that begins right after the signal would last.
            while True:
                time.sleep(0.01)
        began(worker)
        (tmp_path / f"agent-{rank.number}").touch()
        return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])

    def tell():
        while len(list(tmp_path.iterdir())) < 2 * 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Timer(0.0, tell).start()
    with pytest.raises(EndedBySignal, match="SIGTERM: the server has left the run") as ended:
        serve_all_ranks(3, serve)
    assert ended.value.exit_status == 128 + signal.SIGTERM
