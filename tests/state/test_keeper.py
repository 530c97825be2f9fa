import errno
import multiprocessing
import os
import resource
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from harness.bad_memory import flip
from harness.local import launch
from harness.started import wait_until
from recycle.control.board.joinfile import new_token
from recycle.control.membership.doors import HostDoor
from recycle.state.channel import HERE, PURPOSE
from recycle.state.checksum import cut
from recycle.state.client import KeeperClient, send
from recycle.state.errors import BadCopy, KeeperLost, Refused
from recycle.state.keeper import Content, Shelf, listen, listen_to_hosts, serve
from recycle.state.ladder import Copy, StatePart

MEBIBYTE = 1 << 20
LIMIT = 8 * MEBIBYTE
FORK = multiprocessing.get_context("fork")


def part(version=3, number=0, epoch=0, stage=1):
    return StatePart(stage, epoch, version, number, 2)


def content(size=2 * MEBIBYTE, seed=0):
    return (bytes([seed]) + os.urandom(1023)) * (size // 1024)


def put(client, which, data, head=b"head"):
    delivery = client.offer(which, head, len(data))
    delivery.commit(sent(delivery, head, data))
    delivery.confirm()


def sent(delivery, head, data):
    return send({0: [delivery]}, head, ((0, each) for each in cut([memoryview(data)])))[0]


def get(client, which, size=2 * MEBIBYTE):
    heads, found = [], bytearray(size)

    def make_room(head):
        heads.append(head)
        return [memoryview(found)[: size // 3], memoryview(found)[size // 3 :]]

    client.fetch(which, make_room)
    return heads[0], bytes(found)


@pytest.fixture
def token():
    return new_token()


def begin(token, linger=600.0):
    """A keeper in a process of its own."""
    with listen(token) as listener:
        process = FORK.Process(target=serve, args=([listener], token, LIMIT, linger), daemon=True)
        process.start()
    return process


@pytest.fixture
def process(token):
    process = begin(token)
    yield process
    process.kill()
    process.join()


@pytest.fixture
def client(token, process):
    with closing(KeeperClient(HERE, token, "here")) as opened:
        yield opened


def test_what_was_put_is_there_for_another_process_after_its_trainer_was_killed(token, client):
    data = content()

    def train():
        put(client, part(), data)
        client.offer(part(version=4), b"", len(data)).write([memoryview(data)[:-1]])
        os.kill(os.getpid(), signal.SIGKILL)

    trainer = FORK.Process(target=train)
    trainer.start()
    trainer.join()
    # What was half written when its writer died is not there.
    assert client.copies() == (Copy(part(), "here", len(data)),)
    assert get(client, part()) == (b"head", data)
    with pytest.raises(Refused, match="part 1 of 2 of version 4 of stage 1 is not there"):
        get(client, part(version=4))


def test_nothing_is_there_before_it_is_committed_nor_after_it_was_given_up(client):
    data = content()
    for _ in range(4):
        delivery = client.offer(part(), b"", len(data))
        checksum = sent(delivery, b"", data)
        assert client.copies() == ()
        delivery.give_up()
        delivery.commit(checksum)
        with pytest.raises(KeeperLost):
            delivery.confirm()
        assert client.copies() == ()
    # All of the keeper's memory is free again.
    large = content(LIMIT)
    wait_until(lambda: _fits(client, part(), large))


def _fits(client, which, data):
    try:
        put(client, which, data)
    except Refused:
        return False
    return True


def test_memory_that_the_system_does_not_give_is_refused_with_its_words():
    def body(member):
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEBIBYTE, most))
        shelf, opened = Shelf(LIMIT), len([*Path("/proc/self/fd").iterdir()])
        with pytest.raises(Refused, match="takes 2097152 bytes, which the system does not give: File too large"):
            shelf.make_room(part(), 2 * MEBIBYTE)
        assert len([*Path("/proc/self/fd").iterdir()]) == opened
        shelf.make_room(part(), MEBIBYTE)

    launch(1, body)


def test_a_keeper_never_holds_more_than_it_may(client):
    data = content(3 * MEBIBYTE)
    put(client, part(number=0), data)
    put(client, part(number=1), data)
    with pytest.raises(Refused, match=f"of {LIMIT} that may be kept {6 * MEBIBYTE} are taken"):
        put(client, part(version=4), data)
    # What nobody needs any more makes room.
    put(client, part(version=6), data)
    assert [each.part for each in client.copies()] == [part(version=6)]


def test_who_is_in_a_view_that_is_over_puts_nothing(client):
    data = content(1024)
    late = client.offer(part(version=4, number=1), b"", len(data))
    checksum = sent(late, b"", data)
    put(client, part(epoch=1), data)
    with pytest.raises(Refused, match="of a view that is over"):
        client.offer(part(version=5), b"", len(data))
    late.commit(checksum)
    with pytest.raises(Refused, match="of a view that is over"):
        late.confirm()
    assert [each.part for each in client.copies()] == [part(epoch=1)]


def test_who_has_not_the_token_is_not_heard(token, client):
    put(client, part(), content())
    stranger = KeeperClient(HERE, new_token(), "here")
    for attempt in (stranger.copies, lambda: get(stranger, part()), lambda: stranger.offer(part(), b"", 10)):
        with pytest.raises(KeeperLost):
            attempt()
    # Nor does one who says nothing, or anything, keep it from its trainers.
    for said in (b"", b"\xff" * 1000):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(next(HostDoor(token, PURPOSE).names()))
        connection.sendall(said)
        assert [each.part for each in client.copies()] == [part()]
        connection.close()


def test_nobody_is_taken_for_the_keeper_who_has_not_the_token(token):
    with listen(token) as listener:
        imposter = threading.Thread(target=serve, args=([listener], new_token(), LIMIT), daemon=True)
        imposter.start()
        with pytest.raises(KeeperLost):
            KeeperClient(HERE, token, "here").copies()


def test_nothing_is_left_of_a_keeper_that_is_killed(token, process, client):
    put(client, part(), content())
    process.kill()
    process.join()
    with pytest.raises(KeeperLost, match="no keeper can be reached"):
        client.copies()
    # Its address is free for the next one.
    listen(token).close()


def test_a_copy_that_has_changed_is_found_out_and_dropped(token, monkeypatch):
    find = Shelf.find
    data = content()

    def find_spoiled(shelf, which):
        found = find(shelf, which)
        if which == part() and found is not None:
            flip(found.segment, MEBIBYTE + 1)
        return found

    monkeypatch.setattr(Shelf, "find", find_spoiled)
    with listen(token) as listener:
        threading.Thread(target=serve, args=([listener], token, LIMIT), daemon=True).start()
        client = KeeperClient(HERE, token, "here")
        for number in range(2):
            put(client, part(number=number), data)
        with pytest.raises(BadCopy, match="at here is not as it was put"):
            get(client, part())
        client.drop(part())
        assert [each.part for each in client.copies()] == [part(number=1)]
        assert get(client, part(number=1))[1] == data
        client.close()


def test_what_has_come_is_counted_once():
    shelf = Shelf(2 * MEBIBYTE)
    first = shelf.make_room(part(number=0), MEBIBYTE)
    shelf.place(part(number=0), Content(b"", first, 0))
    second = shelf.make_room(part(number=1), MEBIBYTE)
    with pytest.raises(Refused, match=f"{2 * MEBIBYTE} are taken"):
        shelf.make_room(part(stage=0), 1)
    shelf.place(part(number=1), Content(b"", second, 0))
    # The next version but two takes the memory of this one.
    reused = [shelf.make_room(part(version=6, number=number), MEBIBYTE) for number in range(2)]
    assert {id(each) for each in reused} == {id(first), id(second)}


@pytest.mark.parametrize("near", [True, False], ids=["here", "there"])
def test_a_connection_serves_one_part_after_another(token, near):
    data = content(6 * MEBIBYTE)
    with listen(token) as listener, listen_to_hosts("127.0.0.1") as door:
        address = HERE if near else door.getsockname()
        threading.Thread(target=serve, args=([listener, door], token, 3 * LIMIT), daemon=True).start()
        client = KeeperClient(address, token, "it")
        put(client, part(number=0), data)
        # What is given up, or refused, is not mixed up with what comes after it.
        client.offer(part(number=1), b"", len(data)).write([memoryview(data)[:100]])
        with pytest.raises(Refused):
            put(client, part(number=1), content(4 * LIMIT))
        put(client, part(number=1), data)
    # Nobody else gets a connection.
    with pytest.raises(KeeperLost):
        client.copies()
    last = content(6 * MEBIBYTE, seed=1)
    put(client, part(version=4), last)
    client.close()
    with pytest.raises(KeeperLost):
        client.offer(part(version=5), b"", 10)


def test_the_connection_to_a_keeper_that_was_killed_is_not_used_for_the_next_one(token, process, client):
    put(client, part(), content())
    process.kill()
    process.join()
    other = begin(token)
    data = content(seed=1)
    put(client, part(), data)
    assert get(client, part()) == (b"head", data)
    other.kill()
    other.join()


def test_other_hosts_reach_it_at_a_port_that_its_own_host_can_ask_for(token):
    data = content()
    with listen(token) as listener, listen_to_hosts("127.0.0.1") as door:
        threading.Thread(target=serve, args=([listener, door], token, LIMIT), daemon=True).start()
        near = KeeperClient(HERE, token, "here")
        assert near.find_port() == door.getsockname()[1]
        with closing(KeeperClient(("127.0.0.1", near.find_port()), token, "there")) as far:
            put(far, part(), data)
        assert get(near, part()) == (b"head", data)
        stranger = KeeperClient(("127.0.0.1", near.find_port()), new_token(), "there")
        for attempt in (stranger.copies, stranger.dismiss):
            with pytest.raises(KeeperLost):
                attempt()
        assert near.copies() == (Copy(part(), "here", len(data)),)


def test_a_part_of_another_host_for_which_there_is_no_memory_takes_no_room_for_ever(token, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with listen(token) as listener, listen_to_hosts("127.0.0.1") as door:
        threading.Thread(target=serve, args=([listener, door], token, LIMIT), daemon=True).start()
        far = KeeperClient(door.getsockname(), token, "it")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", refuse)
            with pytest.raises(KeeperLost):
                put(far, part(), content(LIMIT))
        wait_until(lambda: _fits(far, part(), content(LIMIT)))


def test_who_has_dismissed_it_finds_nothing_there_although_it_may_take_a_moment_to_end(token):
    with listen(token) as listener:
        threading.Thread(target=serve, args=([listener], token, LIMIT), daemon=True).start()
        client = KeeperClient(HERE, token, "here")
        assert client.copies() == ()
        client.dismiss()
        with pytest.raises(KeeperLost):
            client.copies()


def test_another_start_may_keep_more_and_never_less(client):
    tight = part(stage=0, version=0), content(LIMIT)
    larger = part(stage=1, version=0), content(MEBIBYTE)
    put(client, *tight)
    with pytest.raises(Refused, match=f"of {LIMIT} that may be kept {LIMIT} are taken"):
        put(client, *larger)
    with closing(client.hold(LIMIT + MEBIBYTE)), closing(client.hold(1)):
        put(client, *larger)
        assert get(client, larger[0], MEBIBYTE) == (b"head", larger[1])


def test_it_ends_when_it_is_told_to_or_nobody_is_there_any_more(token):

    client = KeeperClient(HERE, token, "here")
    process = begin(token)
    # Whoever holds it does not keep it from ending when all is over.
    channel = client.hold(0)
    client.dismiss()
    process.join(120)
    assert process.exitcode == 0
    channel.close()
    process = begin(token, 3.0)
    channel = client.hold(0)
    process.join(5)
    assert process.exitcode is None
    channel.close()
    process.join(120)
    assert process.exitcode == 0


def test_one_version_after_another_lands_as_it_was_put(token):
    """From the second time on, in memory that stays mapped."""
    with listen(token) as listener, listen_to_hosts("127.0.0.1") as door:
        threading.Thread(target=serve, args=([listener, door], token, LIMIT), daemon=True).start()
        near, far = KeeperClient(HERE, token, "here"), KeeperClient(door.getsockname(), token, "it")
        for version in range(8):
            for number, client in enumerate((near, far)):
                data = bytearray(content(MEBIBYTE, seed=16 * version + number))
                put(client, part(version=version, number=number), data)
                assert get(near, part(version=version, number=number), MEBIBYTE) == (b"head", data)
        near.close()
        far.close()
