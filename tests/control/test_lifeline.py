"""The lifeline of a worker, in the process that watches it."""

import os
import signal
import threading
from select import select

from harness.started import wait_until
from recycle.control.host.lifeline import Lifeline


def held_by_a_process():
    lifeline = Lifeline()
    process = os.fork()
    if not process:
        lifeline.hold()
        signal.pause()
    wait_until(lambda: lifeline.is_held)
    return lifeline, process


def end(process):
    (thread,) = (each for each in threading.enumerate() if each.name == "lifeline")
    os.kill(process, signal.SIGKILL)
    thread.join()
    os.waitpid(process, 0)


def test_who_watches_it_can_read_when_the_process_is_killed():
    lifeline, process = held_by_a_process()
    cut = lifeline.watch()
    assert not select([cut], [], [], 0)[0]
    end(process)
    assert select([cut], [], [], 0)[0]
    os.close(cut)


def test_who_has_closed_it_finds_nothing_written_to_what_was_opened_in_its_place():
    lifeline, process = held_by_a_process()
    cut = lifeline.watch()
    os.close(cut)
    other = os.eventfd(0, os.EFD_NONBLOCK)
    assert other == cut
    end(process)
    assert not select([other], [], [], 0)[0]
    os.close(other)
