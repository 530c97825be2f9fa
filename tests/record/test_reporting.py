import os
import socket
import time
from contextlib import closing

import msgspec
import pytest

from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.processes import clock_name, numbering
from recycle.record.reading import load_lines, load_recording
from recycle.record.recording import EndedLine, InstantLine, IterationLine, ProcessLine, RecoveryLine, RunLine, ViewLine
from recycle.record.reporting import ConsoleReporter, EventFile, FileReporter
from recycle.record.timeline import Span

FIRST, SECOND = Server(0, 0), Server(1, 0)
ITERATION = IterationLine("W0_0", 3, 0.5, [1.0], 2)
SPAN = Span(FIRST, "compute", Instruction(Op.F, 0, 0, 1), 10.0, 14.0, 3, 7)


def view(epoch, servers=("W0_0", "W1_0")):
    return ViewLine(epoch, 0.0, list(servers), [], 3, "W2_0 died", "memory", 30, 0.9, "the catalogue")


def test_a_recording_gets_events_and_what_was_executed_and_who_watches_only_events(tmp_path):
    sent = []
    with closing(FileReporter(tmp_path, "W0_0", "a run", sent.append)) as reporter:
        reporter.tell(ITERATION, [SPAN])
        reporter.tell(view(1))
    lines = list(load_lines(tmp_path))
    head = RunLine("recycle run", 1, "a run", "us", "measured")
    zero = lines[1].zero
    assert zero == pytest.approx(time.time() - time.monotonic(), abs=60)
    began = lines[1].time
    assert began == pytest.approx(time.monotonic() * 1e6, abs=60e6)
    process = ProcessLine("W0_0", os.getpid(), socket.gethostname(), 0.0, zero, numbering(), began, clock_name())
    assert lines == [head, process, SPAN.line(), ITERATION, view(1), EndedLine("W0_0")]
    assert [msgspec.json.decode(each, type=IterationLine | ViewLine) for each in sent] == [ITERATION, view(1)]
    line = load_recording(tmp_path)
    assert line.spans == (msgspec.structs.replace(SPAN, start=0, end=4),)


def test_who_watches_gets_the_times_by_which_all_recordings_are_read(tmp_path):
    sent = []
    died = InstantLine("failure", 5e6, "W1_0", "W1_0 died")
    recovery = RecoveryLine("W0_0", 1, 3, 7e6, 8e6, 9e6, 9e6, 9.5e6, 11e6)
    with closing(FileReporter(tmp_path, "W0_0", "a run", sent.append, ahead=4e6, clock="the launcher's")) as reporter:
        reporter.tell(died)
        reporter.tell(recovery)
    shown = [msgspec.json.decode(each, type=InstantLine | RecoveryLine) for each in sent]
    assert shown == list(load_lines(tmp_path))[2:-1]
    assert shown[0] == msgspec.structs.replace(died, time=1e6)
    assert (shown[1].noticed, shown[1].redone, shown[1].step) == (3e6, 7e6, 3)


def test_a_process_that_has_said_that_it_ends_says_nothing_more(tmp_path):
    file = EventFile(tmp_path, "W0_0", "a run", pytest.fail)
    file.write(ITERATION)
    file.close()
    file.write(ITERATION)
    assert list(load_lines(tmp_path))[2:] == [ITERATION, EndedLine("W0_0")]


def test_what_cannot_be_recorded_is_a_warning_for_who_watches(tmp_path):
    (tmp_path / "W0_0.jsonl").symlink_to("/dev/full")
    sent = []
    with closing(FileReporter(tmp_path, "W0_0", "a run", sent.append)) as reporter:
        reporter.tell(ITERATION, [SPAN])
    warning, event = (msgspec.json.decode(each, type=IterationLine | InstantLine) for each in sent)
    assert (warning.kind, warning.server) == ("warning", "W0_0")
    assert warning.text.startswith(f"the recording in {tmp_path} cannot be written: No space left on device;")
    assert event == ITERATION


def test_a_line_that_a_killed_process_has_begun_is_no_obstacle_for_the_next_one(tmp_path):
    for _ in range(2):
        with closing(EventFile(tmp_path, "W0_0", "a run", pytest.fail)) as file:
            file.write(ITERATION)
        with (tmp_path / "W0_0.jsonl").open("ab") as killed:
            killed.write(b'{"type":"iterat')
    assert [line for line in load_lines(tmp_path) if isinstance(line, IterationLine)] == [ITERATION, ITERATION]


@pytest.mark.parametrize(("server", "lines"), [(FIRST, 1), (SECOND, 0)])
def test_the_first_server_of_a_view_tells_the_user_of_it_but_not_of_the_view_that_a_run_begins_with(
    capsys, server, lines
):
    reporter = ConsoleReporter(server, lambda text: True)
    reporter.tell(view(0))
    reporter.tell(ITERATION, [SPAN])
    reporter.tell(msgspec.structs.replace(view(1), baseline="fault-free 1F1B within this memory"))
    assert capsys.readouterr().err == lines * (
        "recycle: W2_0 died; training goes on with 2 servers, "
        "planned throughput 90% of fault-free 1F1B within this memory\n"
    )


class Said:
    """Texts that some process has said."""

    def __init__(self):
        self._said = set()

    def is_first(self, text):
        return not (text in self._said or self._said.add(text))


@pytest.mark.parametrize("died_before", [False, True])
@pytest.mark.parametrize("step", [3, 4])
def test_of_a_view_whose_first_server_died_before_it_could_tell_of_it_the_next_one_tells(capsys, died_before, step):
    """Unless an iteration was made in it: each server tells of a view before it begins one."""
    said = Said()
    first, second = (ConsoleReporter(each, said.is_first) for each in (FIRST, SECOND))
    back = msgspec.structs.replace(view(1, ("W0_0", "W1_0", "W2_0")), joined=["W2_0"], cause="new servers are admitted")
    after = msgspec.structs.replace(view(2, ("W1_0", "W2_0")), step=step, cause="W0_0 was killed")
    second.tell(view(0))
    second.tell(back)
    if not died_before:
        first.tell(back)
    second.tell(after)
    lines = capsys.readouterr().err.splitlines()
    alone = "recycle: W0_0 was killed; training goes on with 2 servers, planned throughput 90% of fault-free 1F1B"
    both = (
        "recycle: new servers are admitted; W0_0 was killed; training goes on with 2 servers, W2_0 among them again, "
        "planned throughput 90% of fault-free 1F1B"
    )
    assert len(lines) == (1 if died_before else 2)
    assert lines[-1] == (both if died_before and step == 3 else alone)


def test_of_several_such_views_all_is_told_but_of_servers_that_are_gone_again(capsys):
    reporter = ConsoleReporter(SECOND, Said().is_first)
    for epoch, joined in enumerate((["W2_0"], ["W3_0"]), start=1):
        reporter.tell(msgspec.structs.replace(view(epoch, ("W0_0", "W1_0", *joined)), joined=joined, cause="come"))
    reporter.tell(msgspec.structs.replace(view(3, ("W1_0", "W3_0")), cause="W0_0 died; W2_0 died"))
    assert capsys.readouterr().err.startswith(
        "recycle: come; W0_0 died; W2_0 died; training goes on with 2 servers, W3_0 among them again, "
    )


def test_what_another_process_has_said_is_not_said_again(capsys):
    said = Said()
    for server in (FIRST, SECOND):
        ConsoleReporter(server, said.is_first).tell(InstantLine("warning", 1.0, str(server), "the store is lost"))
    assert capsys.readouterr().err == "recycle: the store is lost\n"


def test_what_happens_again_is_said_again_once(capsys):
    said = Said()
    lost = [InstantLine("unprotected", 1.0, str(each), "the store is lost") for each in (FIRST, SECOND)]
    first, second, late = (ConsoleReporter(each, said.is_first) for each in (FIRST, SECOND, SECOND))
    for times in range(3):
        for reporter, line in ((first, lost[0]), (second, lost[1]), (late, lost[1]))[: 3 if times else 2]:
            reporter.tell(line)
    assert capsys.readouterr().err == 3 * "recycle: the store is lost\n"
