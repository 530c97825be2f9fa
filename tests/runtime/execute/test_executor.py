import pytest

from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Recorder, measured_timeline
from recycle.runtime.errors import InstructionFailed
from recycle.runtime.execute.executor import Executor

PROGRAM = tuple(map(Instruction.parse, ["1RECV_F0.0<W0_0", "1F0.0", "1B0.0", "1SEND_B0.0>W0_0", "1REDUCE", "1STEP"]))


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

    class Slow:
        def before(self, *_):
            pass

        def after(self, _, instruction, __):
            ends.append((instruction, recorder.now()))

    Executor(dict.fromkeys(Op, lambda _: None), recorder, [Slow()]).run(PROGRAM)
    told = dict(ends)
    assert all(entry.start <= told[entry.instruction] <= entry.end for entry in recorder.entries)


def test_names_the_failing_row_and_logs_the_list(caplog):
    def fail(instruction):
        if instruction.op is Op.B:
            raise OSError("no such luck")

    with pytest.raises(InstructionFailed, match=r"W0_1, iteration 0, row 2: no such luck\n(.*\n)*> \[2\] 1B0\.0"):
        Executor(dict.fromkeys(Op, fail), Recorder(Server(0, 1))).run(PROGRAM)
    assert [line for line in caplog.text.splitlines() if line.startswith(">")] == ["> [2] 1B0.0"]
    assert "[5] 1STEP" in caplog.text


def test_the_wait_inside_an_instruction_comes_off_its_start():
    recorder = Recorder(Server(0, 1))
    recorder.add(PROGRAM[0], 100, 200)
    recorder.add(PROGRAM[1], 90, 300)
    first, second = recorder.spans(0)
    assert (first.lane, first.start, first.end) == ("communication", 0.1, 0.2)
    assert (second.lane, second.start, second.end) == ("compute", 0.2, 0.3)
    assert [span.start for span in measured_timeline("run", [[first, second]]).spans] == [0.0, 0.1]


def test_the_oldest_entries_make_room():
    recorder = Recorder(Server(0, 1), capacity=2)
    for time, instruction in enumerate(PROGRAM):
        recorder.add(instruction, time, time + 1)
    assert [entry.instruction.op for entry in recorder.entries] == [Op.REDUCE, Op.STEP]
