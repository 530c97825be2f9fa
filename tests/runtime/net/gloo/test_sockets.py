"""What this release of gloo does when connections are cut below it: every thread that waits in a network is freed."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count

import pytest
import torch
from torch.distributed import HashStore

from harness.local import launch
from harness.processes import is_stopped, open_files, send_signal
from harness.started import wait_until
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import Interrupted, RunError, ViewBroken
from recycle.runtime.net.connect import connect
from recycle.runtime.net.gloo.sockets import Connections, open_connections
from recycle.runtime.net.gloo.transfers import Waits
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.transfer_key import STATE

FOR_EVER = timedelta(seconds=200)
SERVERS = [Server(pipeline, 0) for pipeline in range(3)]


class Freed:
    """A network in which the main thread waits until another one frees it."""

    def __init__(self, store, rank, epoch=0):
        self.alarm = threading.Event()
        view = View.among(SERVERS, epoch)
        options = NetworkOptions(transfer_timeout=FOR_EVER)
        self.network = connect(store, view, SERVERS[rank], options, check=self.check)

    def check(self):
        if self.alarm.is_set():
            raise Interrupted("somebody else raised the alarm")

    def wait_and_be_freed(self, wait, peer):
        def free():
            self.alarm.set()
            self.network.unblock()

        timer = threading.Timer(0.3, free)
        timer.start()
        with pytest.raises(ViewBroken):
            wait(self.network, peer)
        timer.join()


def test_a_thread_is_freed_that_waits_for_a_message_of_which_a_part_has_come():
    def body(member):
        store = member.store()
        freed = Freed(store, member.rank)
        message = torch.zeros(1 << 27)
        freed.network.barrier()
        if member.rank == 0:
            transfer = freed.network.link(SERVERS[1]).receive(message, STATE)
            store.set("posted", "")
            sender = int(store.get("sender"))
            wait_until(lambda: is_stopped(sender))
            freed.wait_and_be_freed(lambda *_: transfer.wait(), None)
            send_signal(sender, signal.SIGCONT)
            store.set("over", "")
        if member.rank == 1:
            store.set("sender", str(os.getpid()))
            store.wait(["posted"], FOR_EVER)
            under_way = freed.network.link(SERVERS[0]).send(message, STATE)
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGSTOP)
            del under_way
        store.wait(["over"], FOR_EVER)

    launch(3, body)


def test_nothing_is_aborted_that_is_no_transfer():
    network = connect(HashStore(), View.among(SERVERS[:1]), SERVERS[0])
    total = network.peers.start_sum(torch.ones(1))._work
    waits = Waits()
    waits.give_up()
    with pytest.raises(RuntimeError, match="given up"):
        waits.wait(total, FOR_EVER)
    with pytest.raises(AssertionError, match="is no transfer of gloo's"):
        waits.give_up()


def test_a_torch_without_what_is_needed_is_refused(monkeypatch):
    monkeypatch.setattr("recycle.runtime.net.gloo.transfers._ABORT", "_ZN4c10d5Other{}5abortEv")
    with pytest.raises(RunError, match=r"torch 2\.\S+ cannot give up what it transfers .*: use torch 2\.9 or"):
        Waits()


def test_no_send_is_forgotten_that_was_about_to_begin_when_its_connection_was_cut():
    """What gloo forgets would be waited for until the test is over; some of these messages are."""

    def body(member):
        store = member.store()
        for trial in range(20):
            options = NetworkOptions(transfer_timeout=FOR_EVER)
            network = connect(store, View.among(SERVERS[:2], trial), SERVERS[member.rank], options)
            network.barrier()
            messages = [torch.zeros(1000) for _ in range(8)]
            link = network.link(SERVERS[1 - member.rank])
            start = link.receive if member.rank else link.send
            transfers = []
            with suppress(ViewBroken):
                transfers += [start(each, STATE) for each in messages]
            if member.rank == 0:
                time.sleep(2e-4 * (trial % 10))
                network.unblock()
            freed = threading.Timer(0.2, network.unblock)
            freed.start()
            for transfer in transfers:
                with suppress(ViewBroken):
                    transfer.wait()
            freed.join()
            store.set(f"{trial}/{member.rank}", "")
            store.wait([f"{trial}/{1 - member.rank}"], FOR_EVER)

    launch(2, body)


@contextmanager
def between_calls(act):
    """Do something wherever Python may let another thread go on: before and after every function of C's."""
    sys.setprofile(lambda _, event, __: act() if event.startswith("c_") else None)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def connected():
    """A connection of this process to itself, by its file descriptor."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with here, accepted:
            yield here


def open_numbers():
    """What each file descriptor of this process is of."""
    return open_files(os.getpid())


def test_whoever_listens_at_the_number_of_a_closed_connection_is_not_cut():
    for moment in count():
        calls = count()
        with connected() as here, socket.create_server(("127.0.0.1", 0)) as later:
            mine = Connections(each for each in open_connections() if each.number == here.fileno())

            def replace(here=here, later=later, moment=moment, calls=calls):
                if next(calls) == moment:
                    os.dup2(later.fileno(), here.fileno())

            with between_calls(replace):
                mine.cut()
            assert later.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if next(calls) <= moment:
            break
    assert moment > 0, "it was closed at no moment"


def test_another_connection_to_the_same_peer_at_the_number_of_a_closed_one_is_not_cut():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as before:
            closed = Connections(each for each in open_connections() if each.number == before.fileno())
        with socket.create_connection(listening.getsockname()) as here:
            assert here.fileno() in {each.number for each in closed._chosen}
            closed.cut()
            here.sendall(b"on")
            listening.accept()[0].close()
            there, _ = listening.accept()
            with there:
                assert there.recv(2) == b"on"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_of_the_internet_are_found_with_both_ends(family, host):
    before = open_connections()
    with socket.create_server((host, 0), family=family) as listening, socket.socket(family, socket.SOCK_DGRAM) as sends:
        sends.connect((host, 9))
        one, other = socket.socketpair()
        with one, other, socket.create_connection(listening.getsockname()[:2]) as here, listening.accept()[0] as there:
            found = {each.number: each for each in open_connections() if each not in before}
            assert set(found) == {here.fileno(), there.fileno()}
            for each in (here, there):
                ends = found[each.fileno()].here, found[each.fileno()].there
                names = each.getsockname(), each.getpeername()
                assert [end.name for end in ends] == [host, host]
                assert [end.port for end in ends] == [socket.htons(name[1]) for name in names]


def test_a_connection_is_looked_at_and_cut_without_a_second_number():
    def look():
        sockets = [each for each in open_numbers().values() if each.startswith("socket:")]
        looks.append(len(sockets) - len(set(sockets)))

    looks = []
    with connected() as here:
        before = len(open_numbers())
        with between_calls(look):
            Connections(each for each in open_connections() if each.number == here.fileno()).cut()
        assert here.recv(1) == b""
        assert len(open_numbers()) == before
    assert looks
    assert not any(looks), "gloo's loop would go on hearing of what is closed meanwhile"
