import msgspec
import pytest

from harness.examples import paper_plan
from harness.recordings import encode_recording, save_recording
from recycle.errors import PlanFileError, UserError
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.planned import timeline
from recycle.record.reading import load_recording, timeline_of
from recycle.record.recording import InstantLine, RunLine
from recycle.record.timeline import Span, Timeline
from tests.view.samples import measured

HEAD = b'{"type":"run","format":"recycle run","version":1,"title":"t","time_unit":"ms","source":"measured"}\n'


@pytest.fixture(scope="module")
def run():
    return measured(paper_plan())


def test_what_is_saved_is_loaded(run, tmp_path):
    for line in (run, timeline(paper_plan(), 2)):
        save_recording(line, tmp_path / "run.jsonl")
        assert load_recording(tmp_path / "run.jsonl") == line


def test_the_files_of_a_directory_are_one_run(run, tmp_path):
    for server in {span.server for span in run.spans}:
        part = msgspec.structs.replace(
            run,
            spans=tuple(span for span in run.spans if span.server == server),
            samples=tuple(sample for sample in run.samples if sample.server == str(server)),
            instants=(),
        )
        save_recording(part, tmp_path / f"{server}.jsonl")
    whole = load_recording(tmp_path)
    assert whole.spans == run.spans
    assert whole.samples == run.samples


def test_a_last_line_without_an_end_is_left_out(run, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(encode_recording(run)[:-5])
    assert load_recording(path).samples == run.samples[:-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (HEAD[:-1], "empty"),
        (HEAD + b"{}\n", "line 2"),
        (HEAD + b"nonsense\n", "line 2"),
        (b'{"type":"sample","server":"W0_0","time":0,"memory":1}\n' + HEAD, "begins with a line of type run"),
        (HEAD.replace(b'"version":1', b'"version":9'), "version 9"),
        (HEAD.replace(b'"version":1', b'"version":9,"new":1'), "version 9"),
        (HEAD.replace(b"recycle run", b"another"), "another"),
        (HEAD + b'{"type":"sample","server":"W0","time":0,"memory":1}\n', "server 'W0'"),
        (
            HEAD + b'{"type":"span","server":"W0_0","lane":"compute","instruction":"0F0.0","start":2,"end":1}\n',
            "ends at",
        ),
        (HEAD + b'{"type":"span","server":"W0_0","lane":"compute","instruction":"0X","start":0,"end":1}\n', "0X"),
        (HEAD + b'{"type":"span","server":"W0_0","lane":"other","instruction":"0F0.0","start":0,"end":1}\n', "lane"),
    ],
)
def test_what_is_no_recording_is_refused_and_the_line_named(content, message, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(PlanFileError, match=message):
        load_recording(path)


def test_parts_of_one_run_share_a_time_unit(run, tmp_path):
    save_recording(run, tmp_path / "a.jsonl")
    save_recording(msgspec.structs.replace(run, time_unit="s"), tmp_path / "b.jsonl")
    with pytest.raises(PlanFileError, match="time unit"):
        load_recording(tmp_path)


def test_a_directory_without_recordings_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"\.jsonl"):
        load_recording(tmp_path)


def test_who_is_dead_when_a_run_goes_on_is_so_since_its_last_work():
    times = {Server(0, 0): (10.0,), Server(1, 0): (10.0, 900.0)}
    spans = [
        Span(server, "compute", Instruction(Op.F, 0, 0, 0), start, start + 4, step)
        for server, starts in times.items()
        for step, start in enumerate(starts)
    ]
    dead = [InstantLine("failure", 800.0, str(server), f"{server} is dead") for server in (Server(0, 0), Server(2, 0))]
    head = RunLine("recycle run", 1, "a run", "us", "measured")
    line = timeline_of([head, *dead, *(each.line() for each in spans)])
    assert line.failed == (Server(0, 0), Server(2, 0))
    assert [line.outages[each][0].start for each in line.failed] == [4, 790]


def test_the_last_iterations_are_numbered_and_timed_from_zero():
    instruction = Instruction(Op.F, 0, 0, 0)
    spans = tuple(Span(Server(0, 0), "compute", instruction, 10.0 * n, 10.0 * n + 4, n) for n in range(5))
    dead = InstantLine("failure", 0, "W1_0", "W1_0 is dead")
    step = InstantLine("optimizer step", 4, None, "stage 0 has stepped")
    whole = Timeline("run", "us", "measured", spans, (dead, step), ())
    last = whole.last(2)
    assert [(span.start, span.end, span.iteration) for span in last.spans] == [(0, 4, 0), (10, 14, 1)]
    assert last.failed == (Server(1, 0),)
    assert last.instants == (dead,)
    assert whole.last(9) == whole
    # Of a run that did not come to its first instruction, no time is zero.
    stillborn = msgspec.structs.replace(whole, spans=())
    assert stillborn.from_zero() == stillborn
