"""What a process does that gets no threads, and no processes."""

import errno
import os
import threading
import time

import pytest
from torch.distributed import ProcessGroupGloo

from harness.local import launch
from harness.scarcity import nothing_starts
from recycle.control.host.children import fork_below
from recycle.errors import UserError
from recycle.threads import (
    CallsThatMayHang,
    NoneLeft,
    map_apart,
    named_shortage,
    needing_threads,
    run_apart,
    start_thread,
)

REMEDY = r"raise ulimit -u, and the limit of processes of the container \(pids.max\)"


def test_who_gets_no_thread_and_no_process_says_what_to_do():
    def body(member):
        with nothing_starts():
            with pytest.raises(NoneLeft, match=f"^the system gives no more threads: {REMEDY}$"):
                start_thread(lambda: None, "none", 0.2)
            with pytest.raises(NoneLeft, match="threads"), named_shortage():
                ProcessGroupGloo.create_device(hostname="127.0.0.1")
            with pytest.raises(NoneLeft, match=f"^the system gives no more processes: {REMEDY}$"):
                fork_below(lambda: None)
        start_thread(lambda: None, "one").join()
        assert needing_threads(3)(threading.active_count)() == 1

    launch(1, body)


def test_a_process_for_which_there_is_no_memory_is_no_matter_of_the_limit_of_processes(monkeypatch):
    def refuse():
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(
        NoneLeft, match=r"^the system has no memory for more processes: free some, .*overcommit"
    ) as lack:
        fork_below(lambda: None)
    assert lack.value.errno == errno.ENOMEM


def test_calls_of_two_threads_wait_for_each_other():
    calls, begun, made = CallsThatMayHang(60.0), threading.Event(), []

    def slow():
        begun.set()
        time.sleep(0.2)
        made.append("slow")

    first = start_thread(lambda: calls.make(slow), "the first")
    begun.wait()
    calls.make(lambda: made.append("quick"))
    first.join()
    assert made == ["slow", "quick"]


def test_who_gets_no_threads_does_one_thing_after_the_other():
    def body(member):
        assert map_apart(pow, 4, "one", [2, 3], [5, 2]) == [32, 9]
        with nothing_starts():
            assert map_apart(pow, 4, "one", [2, 3], [5, 2]) == [32, 9]
            assert map_apart(pow, 4, "one", [], []) == []

    launch(1, body)


def test_what_fails_in_its_thread_is_not_done_again():
    done = []

    def fail(number):
        done.append(number)
        raise RuntimeError(f"{number} fails")

    with pytest.raises(RuntimeError, match="7 fails"):
        map_apart(fail, 1, "one", [7])
    assert done == [7]


def starts_two():
    """As a library does."""
    for _ in range(2):
        try:
            threading.Thread(target=lambda: None).start()
        except RuntimeError as error:
            raise RuntimeError("Resource temporarily unavailable") from error


@pytest.mark.parametrize("start", [lambda: start_thread(lambda: None, "late", 300), needing_threads(2)(starts_two)])
def test_a_thread_is_waited_for(monkeypatch, start):
    refused = []
    own = threading._start_new_thread

    def refuse(*arguments):
        if len(refused) < 3:
            refused.append(arguments)
            raise RuntimeError("can't start new thread")
        return own(*arguments)

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    start()
    assert len(refused) == 3


def test_what_is_run_apart_is_run_without_a_thread_too():
    def body(member):
        ran = []
        run_apart(lambda: ran.append(threading.current_thread()), "apart", 5.0)
        while not ran:
            time.sleep(0.001)
        with nothing_starts():
            run_apart(lambda: ran.append(threading.current_thread()), "apart", 5.0)
        apart, here = ran
        assert here is threading.main_thread() is not apart

    launch(1, body)


def test_what_a_library_starts_is_started_again_where_others_have_taken_its_threads():
    left = [RuntimeError("Resource temporarily unavailable"), UserError("1: Resource temporarily unavailable")]

    @needing_threads(1)
    def make(kind):
        if left:
            raise left.pop()
        return kind

    assert make("group") == "group"
    left.append(RuntimeError("it did not come"))
    with pytest.raises(RuntimeError, match="it did not come"):
        make("group")
