"""What another user of the machine can do at the doors of a run: nothing that keeps it from its end."""

import os
import resource
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from harness.processes import family, processes, send_signal, title
from harness.sockets import Listening, listening
from harness.started import TRAIN
from harness.strangers import as_stranger, needs_root
from recycle.control.board.joinfile import JoinFile
from recycle.control.membership.doors import HostDoor

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"

pytestmark = needs_root


@pytest.fixture
def run(start, tmp_path):
    (tmp_path / "model.toml").write_text(MODEL)
    size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", "200000"]
    kept = ["--keep-in-memory", "copies=1", "--model", str(tmp_path / "model.toml"), "-o", str(tmp_path / "run")]
    run = start([*TRAIN, "train", *size, *kept])
    run.wait_for("iteration 5/")
    run.door = JoinFile.read(tmp_path / "run" / "join.json")
    run.folder = tmp_path / "run"
    return run


def everybody(run):
    """All processes of a run; its keeper is nobody's child."""
    doors = {next(HostDoor(run.door.token, "keeper").names())}
    found = family(run.process.pid)
    for process in processes():
        if title(process) == "recycle: keeper" and any(each.address in doors for each in listening([process])):
            found.add(process)
    return found


def doors_of(run):
    """Where its own processes listen; of torch's transport, what a process listens at belongs to all who reach it."""
    names = {next(HostDoor(run.door.token, each).names()) for each in ("keeper", "signs")}
    found = [each for each in listening(everybody(run)) if each.address in names or run_port(run, each)]
    assert len(found) == 4, found
    return found


def run_port(run, door):
    return isinstance(door.address, tuple) and door.address[1] in (run.door.port, run.door.watch)


def allow_few(run):
    """Let its processes have so few files open that a stranger could use them up.

    Not the store, which is torch's: there, connections that say nothing count up to the limit of the system.
    """
    for each in everybody(run):
        with suppress(ProcessLookupError):
            assert len(set(resource.prlimit(each, resource.RLIMIT_NOFILE))) == 1, title(each)
            if title(each) != "recycle: store":
                resource.prlimit(each, resource.RLIMIT_NOFILE, (1024, 1024))


def count_views(run):
    return run.output.count(": 2 of 2 servers")


def ends_well(run):
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 128 + signal.SIGTERM, run.output[-3000:]
    assert "with a checkpoint" in run.output


def hold(doors, count):
    """Connect to all of them, so often, and say nothing."""
    held = []
    for each in doors * count:
        with suppress(OSError):
            held.append(each.connect())
    return held


def talk(doors, said):
    """Say something at all of them, again and again, for as long as this process is there."""

    def talk_to(door: Listening) -> None:
        while True:
            with suppress(OSError), door.connect() as connection:
                connection.sendall(said)
                connection.recv(1000)

    for each in doors:
        threading.Thread(target=talk_to, args=(each,), daemon=True).start()


def dribble(doors):
    """One byte a second at many connections of each."""
    held = hold(doors, 50)

    def go_on() -> None:
        while True:
            for each in held:
                with suppress(OSError):
                    each.send(b"\xff", socket.MSG_DONTWAIT)
            time.sleep(1.0)

    threading.Thread(target=go_on, daemon=True).start()
    return held


FLOODS = {
    "idle": lambda doors: hold(doors, 1100),
    "dribble": dribble,
    "lengths": lambda doors: talk(doors, b"\xff" * 200),
    "garbage": lambda doors: talk(doors, os.urandom(100_000)),
}


@pytest.mark.parametrize(
    "flood", ["idle", *(pytest.param(each, marks=pytest.mark.long) for each in FLOODS if each != "idle")]
)
def test_a_flood_by_another_user_ends_no_process_and_a_kill_meanwhile_is_survived(run, flood):
    doors = doors_of(run)
    allow_few(run)
    before = {each: title(each) for each in everybody(run)}
    with as_stranger(lambda: FLOODS[flood](doors)):
        views = count_views(run)
        (worker,) = run.processes("^recycle: W1_0")
        send_signal(worker, signal.SIGKILL)
        run.wait_for(": 1 of 2 servers")
        deadline = time.monotonic() + 120
        while count_views(run) == views:
            assert time.monotonic() < deadline, run.output[-3000:]
            time.sleep(0.05)
        gone = {name for each, name in before.items() if not title(each)}
        assert gone <= {"recycle: W1_0", "recycle: agent of W1_0"}, run.output[-3000:]
        assert "keeper's process is gone" not in run.output
        ends_well(run)


@pytest.mark.long
def test_five_thousand_idle_connections_to_every_door(run):
    doors = doors_of(run)
    allow_few(run)
    with ExitStack() as strangers:
        for _ in range(5):
            strangers.enter_context(as_stranger(lambda: hold(doors, 1000)))
        (worker,) = run.processes("^recycle: W1_0")
        send_signal(worker, signal.SIGKILL)
        run.wait_for(": 1 of 2 servers")
        ends_well(run)


def test_at_no_socket_of_a_run_another_user_is_told_anything(run):
    kinds = {}
    for each in listening(everybody(run)):
        titles = {title(holder) for holder in each.holders}
        if run_port(run, each):
            kinds["store" if each.address[1] == run.door.port else "launcher"] = titles
        elif each.address == next(HostDoor(run.door.token, "keeper").names()):
            kinds["keeper"] = titles
        elif each.address == next(HostDoor(run.door.token, "signs").names()):
            kinds["signs"] = titles
        else:
            # Torch's, one of each worker, where any that is connected is taken for a rank.
            assert all(name.startswith("recycle: W") for name in titles), (each, titles)
            assert each.address[0] == "127.0.0.1"
            continue
        assert len(titles) == 1, (each, titles)
    assert kinds["store"] == {"recycle: store"}
    assert kinds["keeper"] == {"recycle: keeper"}
    assert kinds["signs"] <= {"recycle: agent of W0_0", "recycle: agent of W1_0"}
    assert len(kinds["launcher"] - {"recycle: fork server", "recycle: store"}) == 1
    doors = [each for each in doors_of(run) if each.address != ("127.0.0.1", run.door.port)]

    def try_all():
        for each in doors:
            heard = b""
            with each.connect() as connection, suppress(ConnectionError):
                connection.send(b"x" * 48)
                while part := connection.recv(1000):
                    heard += part
            # Nothing on this host, and elsewhere what is chosen anew for each connection.
            assert len(heard) == (16 if each.family == socket.AF_INET else 0), (each, heard)
        for path in (run.folder / "join.json",):
            with pytest.raises(PermissionError):
                path.read_bytes()

    with as_stranger(try_all):
        pass
    for path in [run.folder, *run.folder.rglob("*")]:
        assert not path.stat().st_mode & 0o022, path
    assert (run.folder / "join.json").stat().st_mode & 0o777 == 0o600
    ends_well(run)
