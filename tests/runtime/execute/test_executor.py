import threading
import time
from functools import partial

import pytest

from harness.started import wait_until
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import HostMoment, Recorder
from recycle.runtime.errors import ConnectionLost, InstructionFailed
from recycle.runtime.execute.executor import RUN_AHEAD, Executor

PROGRAM = tuple(map(Instruction.parse, ["1RECV_F0.0<W0_0", "1F0.0", "1B0.0", "1SEND_B0.0>W0_0", "1REDUCE", "1STEP"]))


class Slow:
    """Hooks that do something after each instruction."""

    def __init__(self, after):
        self.after = after

    def before(self, *_):
        pass


def test_every_op_needs_a_handler():
    handlers = {op: lambda instruction: None for op in Op if op is not Op.W}
    with pytest.raises(AssertionError, match="no handler for W"):
        Executor(handlers, Recorder(Server(0, 1)))


def test_runs_in_order_and_records_all_but_receives():
    done = []
    recorder = Recorder(Server(0, 1))
    Executor(dict.fromkeys(Op, done.append), recorder).run(PROGRAM)
    assert tuple(done) == PROGRAM
    assert [entry.instruction for entry in recorder.entries] == list(PROGRAM[1:])


def test_what_a_slow_server_waits_is_a_part_of_its_instructions():
    recorder, ends = Recorder(Server(0, 1)), []

    def wait(_, instruction, __):
        ends.append((instruction, time.monotonic_ns()))

    Executor(dict.fromkeys(Op, lambda _: None), recorder, [Slow(wait)]).run(PROGRAM)
    told = dict(ends)
    assert all(entry.start <= told[entry.instruction] <= entry.end for entry in recorder.entries)


def test_names_the_failing_row_and_logs_the_list(caplog):
    def fail(instruction):
        if instruction.op is Op.B:
            raise OSError("no such luck")

    with pytest.raises(InstructionFailed, match=r"W0_1, iteration 1, row 2: no such luck\n(.*\n)*> \[2\] 1B0\.0"):
        Executor(dict.fromkeys(Op, fail), Recorder(Server(0, 1))).run(PROGRAM)
    assert [line for line in caplog.text.splitlines() if line.startswith(">")] == ["> [2] 1B0.0"]
    assert "[5] 1STEP" in caplog.text


def test_the_wait_inside_an_instruction_comes_off_its_start():
    recorder = Recorder(Server(0, 1))
    recorder.add(PROGRAM[0], HostMoment(100), HostMoment(200))
    recorder.add(PROGRAM[1], HostMoment(90), HostMoment(300))
    first, second = recorder.take_spans()
    assert (first.lane, first.start, first.end) == ("communication", 0.1, 0.2)
    assert (second.lane, second.start, second.end) == ("compute", 0.2, 0.3)


def test_what_was_recorded_is_taken_once_and_stays_to_be_looked_at():
    recorder = Recorder(Server(0, 1))
    recorder.add(PROGRAM[0], HostMoment(100), HostMoment(200))
    assert [span.start for span in recorder.take_spans()] == [0.1]
    recorder.add(PROGRAM[1], HostMoment(200), HostMoment(300))
    assert [span.start for span in recorder.take_spans()] == [0.2]
    assert recorder.take_spans() == []
    assert [entry.start for entry in recorder.entries] == [100, 200]
    recorder.add(PROGRAM[2], HostMoment(300), HostMoment(400))
    recorder.clear()
    assert recorder.take_spans() == []


def test_what_an_instruction_has_waited_for_is_no_part_of_its_time():
    """A slow server computes longer, and does not wait longer the longer it has waited."""
    device = Device()
    recorder, start = Recorder(Server(0, 1), clock=device), DeviceMoment(device, 0)
    device.finish(3)
    device.started = 3
    recorder.add(PROGRAM[0], start, DeviceMoment(device, 2))
    assert recorder.seconds_since(start) == 1e-9
    recorder.add(PROGRAM[1], start, DeviceMoment(device, 3))
    device.started = device.done = 7
    assert recorder.seconds_since(DeviceMoment(device, 5)) == 2e-9


def test_the_oldest_entries_make_room():
    recorder = Recorder(Server(0, 1), capacity=2)
    for place, instruction in enumerate(PROGRAM):
        recorder.add(instruction, HostMoment(place), HostMoment(place + 1))
    assert [entry.instruction.op for entry in recorder.entries] == [Op.REDUCE, Op.STEP]


class Device:
    """What computes, one thing after another, each when it is told to; it is a MomentClock."""

    def __init__(self):
        self.started = self.done = self.waits = 0
        self._changed = threading.Condition()

    def start(self, _=None):
        self.started += 1

    def finish(self, count=1):
        with self._changed:
            self.done += count
            self._changed.notify_all()

    def mark(self):
        return DeviceMoment(self, self.started)

    def times(self, marks):
        for each in marks:
            each.wait()
        return [each.place for each in marks]

    def wait(self, place):
        with self._changed:
            if self.done < place:
                self.waits += 1
                assert self._changed.wait_for(lambda: self.done >= place, 60)


class DeviceMoment:
    def __init__(self, device, place):
        self.place = place
        self.wait = partial(device.wait, place)


COMPUTING = [Instruction(Op.F, 0, 0, number) for number in range(6)]


def test_the_device_is_given_the_next_instructions_before_it_is_done():
    device = Device()
    executor = Executor(dict.fromkeys(Op, device.start), Recorder(Server(0, 0), clock=device))
    thread = threading.Thread(target=executor.run, args=(COMPUTING,), daemon=True)
    thread.start()
    for done in range(len(COMPUTING) - RUN_AHEAD):
        wait_until(lambda done=done: device.waits == done + 1)
        assert device.started == done + RUN_AHEAD
        device.finish()
    thread.join(60)
    assert not thread.is_alive(), "it waits for the last instructions, and nothing needs them"
    assert device.started == len(COMPUTING)


class Coming:
    """A transfer with which a device computes when it has come; see Transfer."""

    def __init__(self, number, waited, device):
        self.number = number
        self._waited = waited
        self._device = device

    def wait(self):
        self._waited.append((self.number, self._device.started))
        self._device.finish()


def run_with_transfers(device, come):
    """Have a device compute with transfers, of which each instruction has one by its number."""

    def compute(instruction):
        device.start()
        return come(instruction.micro_batch)

    executor = Executor(dict.fromkeys(Op, compute), Recorder(Server(0, 0), clock=device))
    executor.run(COMPUTING)


def test_what_is_received_is_looked_at_two_instructions_later_and_at_the_end():
    device, waited = Device(), []
    run_with_transfers(device, lambda number: Coming(number, waited, device))
    behind = [(number, min(number + RUN_AHEAD, len(COMPUTING))) for number in range(len(COMPUTING))]
    assert waited == behind
    assert device.waits == 0, "a device that waits for who is gone is not waited for"


def test_a_list_ends_with_a_receive_that_does_not_though_the_device_waits_for_it():
    device, waited = Device(), []

    class Lost:
        def wait(self):
            raise ConnectionLost("nobody answers")

    with pytest.raises(ConnectionLost, match="nobody answers"):
        run_with_transfers(device, lambda number: Lost() if number == 3 else Coming(number, waited, device))
    assert [number for number, _ in waited] == [0, 1, 2]
    assert device.started == 3 + RUN_AHEAD


def test_transfers_between_them_leave_the_device_two_instructions_that_compute():
    device = Device()
    send, other = Instruction.parse("0SEND_F0.0>W0_1"), Instruction(Op.F, 0, 0, 1)
    program = [COMPUTING[0], send, send, send, other]

    def compute(instruction):
        if instruction.op.is_compute:
            device.start()

    Executor(dict.fromkeys(Op, compute), Recorder(Server(0, 0), clock=device)).run(program)
    assert (device.started, device.waits) == (2, 0)


def test_a_device_that_keeps_up_is_never_waited_for():
    device = Device()

    def compute(_):
        device.start()
        device.finish()

    recorder = Recorder(Server(0, 0), clock=device)
    Executor(dict.fromkeys(Op, compute), recorder).run(COMPUTING)
    assert [(each.start, each.end) for each in recorder.entries] == [(each, each + 1) for each in range(6)]
    assert device.waits == 0


def test_times_are_of_the_device_and_not_of_the_calls():
    device = Device()
    recorder = Recorder(Server(0, 0), clock=device)
    Executor(dict.fromkeys(Op, device.start), recorder).run(COMPUTING[:RUN_AHEAD])
    threading.Timer(0.05, device.finish, [RUN_AHEAD]).start()
    assert [(each.start, each.end) for each in recorder.entries] == [(0, 1), (1, 2)]
    assert device.waits > 0


def test_what_needs_the_time_of_an_instruction_waits_for_its_end():
    device, taken = Device(), []

    def wait(_, __, seconds):
        threading.Timer(0.02, device.finish).start()
        taken.append(seconds())

    Executor(dict.fromkeys(Op, device.start), Recorder(Server(0, 0), clock=device), [Slow(wait)]).run(COMPUTING)
    assert taken == [1e-9] * 6
