import os
import signal
import time
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo

from harness.local import launch
from recycle.errors import UserError
from recycle.faults.fired import FiredFile, load_fired
from recycle.faults.menu import Fault, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.files import write_whole
from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.runtime.execute.injection import EXIT_STATUS, InjectedFault, Injector

ME = Server(0, 1)
PROGRAM = tuple(map(Instruction.parse, ["1RECV_F0.0<W0_0", "1F0.0", "1F0.1", "1W0.0", "1SEND_B0.0>W0_0", "1STEP"]))
FORWARD, STEP = PROGRAM[1], PROGRAM[-1]


def fault(kind, step=1, instruction=None, **fields):
    pattern = None if instruction is None else InstructionPattern.parse(instruction)
    return Fault(kind, (ME,), step=step, instruction=pattern, **fields)


class Child:
    """A real process that executes the program for three steps and writes down every instruction."""

    def __init__(self, folder, *faults, body=lambda: None):
        self.done, self.fired = folder / "done", folder / "fired.jsonl"
        self.done.touch()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._run(Injector(faults, FiredFile(self.fired, print, ME).write, list))
                body()
                os._exit(0)
            finally:
                os._exit(1)

    def _run(self, injector):
        with self.done.open("ab", buffering=0) as file:
            for step in range(3):
                for instruction in PROGRAM:
                    injector.before(step, instruction)
                    file.write(f"{step} {instruction}\n".encode())

    def wait(self, options=0):
        return os.waitpid(self.pid, options)[1]

    def instructions(self):
        return self.done.read_text().splitlines()


EVERY = [f"{step} {instruction}" for step in range(3) for instruction in PROGRAM]


@pytest.mark.parametrize(
    ("instruction", "executed"), [(None, 6), ("1F0.1", 8), ("1F", 7), ("1SEND_B", 10), ("1STEP", 11), ("1B", 18)]
)
def test_a_kill_comes_right_before_its_instruction(tmp_path, instruction, executed):
    kill = fault(Kind.KILL, instruction=instruction)
    child = Child(tmp_path, kill)
    status = child.wait()
    assert child.instructions() == EVERY[:executed]
    if executed == len(EVERY):
        assert os.waitstatus_to_exitcode(status) == 0
        assert load_fired(child.fired) == ()
    else:
        assert os.WTERMSIG(status) == signal.SIGKILL
        (line,) = load_fired(child.fired)
        assert (line.by, line.kind, line.fault) == ("W0_1", "kill", str(kill))


def test_an_exit_has_its_own_status(tmp_path):
    child = Child(tmp_path, fault(Kind.EXIT))
    assert os.waitstatus_to_exitcode(child.wait()) == EXIT_STATUS
    assert child.instructions() == EVERY[:6]


def test_a_stopped_process_is_woken_up_and_goes_on(tmp_path):
    heard, told = os.pipe()
    child = Child(tmp_path, fault(Kind.STOP, duration=0.2), body=lambda: (os.close(told), os.read(heard, 1)))
    # Who is slow to look finds it woken up, and not at its end.
    seen = child.wait(os.WUNTRACED | os.WCONTINUED)
    assert os.WIFCONTINUED(seen) or os.WSTOPSIG(seen) == signal.SIGSTOP
    os.close(told)
    assert os.waitstatus_to_exitcode(child.wait()) == 0
    os.close(heard)
    assert child.instructions() == EVERY
    assert [line.kind for line in load_fired(child.fired)] == ["stop"]


def test_without_a_duration_it_stays_stopped_until_somebody_else_wakes_it(tmp_path):
    child = Child(tmp_path, fault(Kind.STOP))
    assert os.WSTOPSIG(child.wait(os.WUNTRACED)) == signal.SIGSTOP
    os.kill(child.pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(child.wait()) == 0
    assert child.instructions() == EVERY


def test_an_exception_fires_once_though_its_step_is_redone():
    fired = []
    injector = Injector(
        [fault(Kind.EXCEPTION, instruction="1F0.0")], lambda fault, time: fired.append(fault.kind), list
    )
    injector.before(0, FORWARD)
    injector.before(1, STEP)
    with pytest.raises(InjectedFault, match=r"exception of W0_1 in iteration 2 before 1F0\.0"):
        injector.before(1, FORWARD)
    injector.before(1, FORWARD)
    assert fired == [Kind.EXCEPTION]


def test_two_equal_faults_fire_at_once_and_each_is_told():
    fired = []
    injector = Injector([fault(Kind.SLOW, factor=2.0)] * 2, lambda fault, time: fired.append(time), list)
    injector.before(1, FORWARD)
    assert len(fired) == 2
    assert fired == sorted(fired)


# Were any of these instructions slowed down, the test would run into its time limit.
HOURS = 10_000.0


def test_a_slow_server_takes_longer_for_compute_only_and_only_from_then_on():
    injector = Injector([fault(Kind.SLOW, factor=4.0)], lambda fault, time: None, list)
    injector.before(0, FORWARD)
    injector.after(1, FORWARD, lambda: HOURS)
    injector.before(1, FORWARD)
    start = time.monotonic()
    injector.after(1, FORWARD, lambda: 0.05)
    assert time.monotonic() - start >= 3 * 0.05
    injector.after(1, STEP, lambda: HOURS)


def test_a_slow_server_recovers_after_the_duration():
    injector = Injector([fault(Kind.SLOW, factor=4.0, duration=0.01)], lambda fault, time: None, list)
    injector.before(1, FORWARD)
    time.sleep(0.02)
    injector.after(1, FORWARD, lambda: HOURS)


def test_gradients_are_spoilt_before_one_reduction():
    fired = []
    buffers = [torch.zeros(2, 3), torch.zeros(4, dtype=torch.bfloat16)]
    injector = Injector([fault(Kind.NAN)], lambda fault, time: fired.append(str(fault)), lambda: buffers)
    reduce = Instruction.parse("1REDUCE")
    injector.before(1, PROGRAM[0])
    injector.before(0, reduce)
    assert not any(buffer.isnan().any() for buffer in buffers)
    injector.before(1, reduce)
    assert all(buffer.isnan().any() for buffer in buffers)
    buffers[:] = [clean := torch.zeros(2)]
    injector.before(1, reduce)
    assert not clean.isnan().any()
    assert fired == ["nan of W0_1 in iteration 2"]


def test_a_full_disk_fails_writes_and_leaves_the_old_file(tmp_path):
    path, read, write = tmp_path / "state", *os.pipe()
    path.write_bytes(b"old")

    def body():
        injector = Injector([fault(Kind.DISK_FULL)], FiredFile(tmp_path / "disk.jsonl", print, ME).write, list)
        injector.before(1, FORWARD)
        try:
            write_whole(path, b"new")
        except UserError as error:
            os.write(write, str(error).encode())

    child = Child(tmp_path, body=body)
    os.close(write)
    assert os.waitstatus_to_exitcode(child.wait()) == 0
    with os.fdopen(read) as pipe:
        assert pipe.read() == f"{path}: cannot be written: File too large"
    assert path.read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk.jsonl", "done", "state"]
    assert [line.kind for line in load_fired(tmp_path / "disk.jsonl")] == ["disk-full"]


def test_a_full_disk_has_room_again_after_the_duration(tmp_path):
    path = tmp_path / "state"

    def body():
        Injector([fault(Kind.DISK_FULL, duration=0.2)], lambda fault, time: None, list).before(1, FORWARD)
        while not path.exists():
            time.sleep(0.01)
            with suppress(UserError):
                write_whole(path, b"new")

    assert os.waitstatus_to_exitcode(Child(tmp_path, body=body).wait()) == 0
    assert path.read_bytes() == b"new"


def test_a_disconnected_worker_and_its_partner_both_notice_and_the_store_stays():
    reports = {}

    def body(member):
        store = member.store()
        group = ProcessGroupGloo(PrefixStore("epoch/0", store), member.rank, member.count, timedelta(seconds=60))
        other = 1 - member.rank
        group.allreduce([torch.ones(1)]).wait()
        received = group.recv([torch.zeros(1)], other, 1)
        store.set(f"waits/{member.rank}", "yes")
        store.wait([f"waits/{other}"])
        if member.rank == 0:
            injector = Injector([fault(Kind.DISCONNECT)], lambda fault, time: None, list, [member.port])
            injector.before(1, FORWARD)
        with pytest.raises(RuntimeError, match=r"Connection closed by peer|Connection reset|Broken pipe"):
            received.wait()
        store.set(f"noticed/{member.rank}", "yes")
        member.report(store.get(f"noticed/{other}"))

    launch(2, body, lambda rank, content: reports.update({rank: content}))
    assert reports == {0: b"yes", 1: b"yes"}
