import gc
import os
import signal
from datetime import timedelta
from multiprocessing import get_context

import pytest
from torch.distributed import HashStore, ProcessGroupGloo

from harness.local import ProcessFailed, launch
from recycle.runtime.errors import RunError


def test_reports_reach_the_launcher_and_the_store_connects_all():
    received = {}

    def body(member):
        member.store().set(f"name/{member.rank}", f"process {member.rank}")
        member.report(member.store().get(f"name/{(member.rank + 1) % member.count}"))

    launch(3, body, lambda rank, content: received.update({rank: content}))
    assert received == {0: b"process 1", 1: b"process 2", 2: b"process 0"}


def test_the_first_failure_ends_all():
    def body(member):
        if member.rank == 1:
            raise KeyError("lost")
        signal.pause()

    with pytest.raises(ProcessFailed, match=r"^process 1 of 3 failed: KeyError: 'lost'$") as failure:
        launch(3, body)
    assert "in body" in failure.value.detail


def test_a_users_mistake_is_one_line():
    def body(member):
        raise RunError("dataset: /nowhere is missing; give --data a file that exists")

    with pytest.raises(RunError, match=r"^dataset: /nowhere is missing; give --data a file that exists$"):
        launch(2, body)


def test_a_killed_process_is_noticed():
    def body(member):
        if member.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(ProcessFailed, match="process 0 was killed by signal 9"):
        launch(2, body)


def test_a_killed_process_is_named_and_not_the_peers_that_miss_it():
    def body(member):
        store = member.store()
        if member.rank == 1:
            store.set("dies", "")
            os.kill(os.getpid(), signal.SIGKILL)
        store.wait(["dies"])
        store.wait(["never"], timedelta(seconds=1))

    with pytest.raises(ProcessFailed, match=r"process 1.* was killed by signal 9"):
        launch(3, body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_launcher_ends_its_processes(number):
    """They all have the other end of a pipe."""
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def body(_):
        writer.send_bytes(b"here")
        signal.pause()

    launcher = context.Process(target=launch, args=(2, body))
    launcher.start()
    writer.close()
    for _ in range(2):
        assert reader.recv_bytes() == b"here"
    os.kill(launcher.pid, number)
    launcher.join()
    assert reader.poll(60)
    with pytest.raises(EOFError):
        reader.recv_bytes()


def test_the_garbage_of_the_launcher_is_not_collected_in_its_processes():
    """The end of a group waits for its threads, which a fork leaves behind."""
    garbage = {"group": ProcessGroupGloo(HashStore(), 0, 1, timeout=timedelta(seconds=5))}
    garbage["itself"] = garbage

    def body(_):
        signal.alarm(30)
        gc.collect()

    gc.disable()
    try:
        del garbage
        launch(1, body, lambda *_: None)
    finally:
        gc.enable()
