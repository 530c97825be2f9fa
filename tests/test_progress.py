import io
import re

from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from recycle.cli.run import shown_run
from recycle.cli.run.shown_run import TrainingProgress
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.record.totals import Totals
from tests.record.test_history import FOUR, KILLED
from tests.record.test_totals import iteration, view
from tests.view.samples import small


def shown(lines, terminal=False):
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120, soft_wrap=True)
    with TrainingProgress(console, small(2, 2, 2), 1000, 8) as progress:
        totals = Totals(progress.show)
        for line in lines:
            progress.note(line)
            totals.add(line)
        progress.summarise()
    return output.getvalue()


RUN = [
    view(0, FOUR),
    *(iteration(server, 0, [2.0] if server[-1] == "1" else ()) for server in FOUR),
    *KILLED[5:],
    view(2, FOUR[:3], 1),
    *(iteration(server, 1, [1.0] if server[-1] == "1" else (), epoch=2) for server in FOUR[:3]),
]


def test_events_stand_between_the_iterations_and_the_view_follows():
    lines = shown(RUN).splitlines()
    assert lines[0] == "4 servers are connected, and make the first iteration"
    figures = "loss 2.0000, 1,000 tokens/s, 1 s each, 7 s left"
    assert lines[1] == f"iteration 1/8: {figures}, 4/4 servers, planned throughput 100% of fault-free 1F1B"
    assert lines[2] == "W1_1 died: was killed by signal 9 (SIGKILL), noticed by its agent"
    assert lines[3].startswith("view 1: 3 of 4 servers, planned throughput 90% of before (90% of fault-free 1F1B)")
    line = "iteration 2/8: loss 1.0000, 1,000 tokens/s, 1 s each, 6 s left, 3/4 servers"
    assert f"{line}, planned throughput 100% of the start (100% of fault-free 1F1B)" in lines
    assert (
        lines[-1] == "at the end view 2: 3 of 4 servers, planned throughput 100% of the start (100% of fault-free 1F1B)"
    )


def test_in_a_terminal_they_stand_above_the_line_that_goes_on():
    text = " ".join(re.sub(r"\x1b\[[\d;?]*\w", "", shown(RUN, terminal=True)).split())
    assert text.index("W1_1 died: ") < text.index(
        "3/4 servers, planned throughput 100% of the start (100% of fault-free 1F1B)"
    )


def test_the_end_says_how_long_it_took_and_that_nothing_failed():
    lines = shown([RUN[0], *RUN[1:5]]).splitlines()
    assert lines[-2].startswith("1 iteration in ")
    assert lines[-2].endswith(", 1 s each in the median")
    assert lines[-1] == "no failures"


def test_what_is_only_for_looking_at_can_fail_and_begins_again(tmp_path):
    board, picture, output = tmp_path / "tensorboard", tmp_path / "loss.svg", io.StringIO()
    picture.mkdir()
    run = Run(small(2, 2, 2), ModelOptions(2, 32, 2, 16), 8, tmp_path)
    with shown_run.shown(run, Console(file=output, width=200, soft_wrap=True)) as watch:
        for line in RUN[:5]:
            watch(line)
        (first,) = board.glob("events.out.tfevents.*")
        before = first.read_bytes()
        board.rename(tmp_path / "nice-name")
        board.write_text("a file where the folder was")
        for server in FOUR:
            watch(iteration(server, 1, [1.0]))
        board.unlink()
        for server in FOUR:
            watch(iteration(server, 2, [1.0]))
    told = output.getvalue()
    assert f"warning: {board} cannot be written: " in told
    assert f"warning: {board} is written again" in told
    assert f"warning: {picture}: cannot be written: Is a directory" in told
    assert (tmp_path / "nice-name" / first.name).read_bytes() == before
    events = [each.summary.value[0].simple_value for each in EventFileLoader(str(first)).Load() if each.summary.value]
    assert len(events) == 2


def test_the_curves_go_on_behind_an_iteration_whose_losses_were_lost_with_their_servers(tmp_path):
    run = Run(small(2, 2, 2), ModelOptions(2, 32, 2, 16), 8, tmp_path)
    with shown_run.shown(run, Console(file=io.StringIO())) as watch:
        watch(RUN[0])
        for step, losses in enumerate(([], [1.0], [1.0])):
            for server in FOUR:
                watch(iteration(server, step, losses))
        (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
        loaded = EventFileLoader(str(file)).Load()
        assert {each.step for each in loaded if each.summary.value} == {1, 2}
