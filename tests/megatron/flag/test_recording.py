"""What a server records of Megatron's own training, which is played here by a module with its two functions."""

import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from harness.examples import paper_plan
from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.run.recording import Recording, begin_recordings
from recycle.plan.instruction import Instruction, Op
from recycle.record.history import history_of
from recycle.record.reading import load_lines
from recycle.record.recorder import HostMoment, Recorder
from recycle.record.recording import EvaluationLine, InstantLine, IterationLine, SpanLine, ViewLine
from recycle.record.totals import totals_of
from recycle.runtime.recover.view_reports import first_view

LAST = Server(0, 3)


class Training:
    """Megatron's module: one server's part in iterations, whose losses are their numbers."""

    def __init__(self, folder, plan, server=LAST, life=0, epoch=0):
        self.recording = Recording.open(folder, plan, epoch, Member(server, life), SOLE, 4)
        self.recorder = Recorder(server)
        self.arguments = SimpleNamespace(iteration=0, curr_iteration=0)
        self.stage, self.last = server.stage, server.stage == 3
        self.recording.install(self, self.arguments, self.recorder)

    def train_step(self, *_, iteration=None):
        step = self.arguments.curr_iteration
        self.recorder.iteration = step
        start = time.monotonic_ns()
        self.recorder.add(Instruction(Op.F, self.stage, 0, 0), HostMoment(start), HostMoment(start + 1000))
        return ({"lm loss": step + 0.5, "mtp loss": 9.0} if self.last else {}), False, False, False, 0, 1.0, None, 0

    def evaluate(self, *_):
        return ({"lm loss": 7.0} if self.last else {}), None, False

    def make(self, *steps):
        for step in steps:
            self.arguments.curr_iteration = step
            self.train_step()


def lines(folder, kind):
    return [line for line in load_lines(folder) if isinstance(line, kind)]


@pytest.fixture
def plan():
    return paper_plan(failed=())


@pytest.fixture
def start():
    """Begin a server's part; all recordings are closed at the end."""
    with ExitStack() as opened:

        def begin(*words, **settings):
            training = Training(*words, **settings)
            opened.callback(training.recording.close)
            return training

        yield begin


def test_iterations_and_evaluations_have_what_the_training_code_prints(tmp_path, plan, start):
    folder = tmp_path / "runs" / "7"
    assert begin_recordings(folder, plan) == 0
    training = start(folder, plan)
    training.recording.enter(0, 0)
    training.make(0, 1)
    training.evaluate()
    told = [(each.step, each.losses, each.peak_memory, each.micro_batches) for each in lines(folder, IterationLine)]
    # One of the six that the plan has for each of three pipelines.
    assert told == [(0, [0.5], 1, 3), (1, [1.5], 1, 3)]
    assert [(each.step, each.losses) for each in lines(folder, EvaluationLine)] == [(2, [7.0])]
    assert [each.iteration for each in lines(folder, SpanLine)] == [0, 1]


def test_servers_of_other_stages_say_no_losses(tmp_path, plan, start):
    training = start(tmp_path, plan, Server(1, 0))
    training.recording.enter(0, 0)
    training.make(0)
    training.evaluate()
    assert [each.losses for each in lines(tmp_path, IterationLine)] == [[]]
    assert not lines(tmp_path, EvaluationLine)


def test_an_iteration_is_told_of_as_that_of_the_view_that_made_it(tmp_path, plan, start):
    """In a vote's second round a death is heard of by some only, when the iteration is made already."""
    training = start(tmp_path, plan)
    training.recording.enter(0, 0)
    training.make(0)
    training.recording.enter(1, 2)
    training.make(1, 2)
    assert [(each.step, each.epoch) for each in lines(tmp_path, IterationLine)] == [(0, 0), (1, 0), (2, 1)]


def test_what_a_view_makes_again_is_told_of_again(tmp_path, plan, start):
    training = start(tmp_path, plan)
    training.recording.enter(0, 0)
    training.make(0, 1, 2)
    training.recording.enter(1, 2)
    training.make(3)
    told = [(each.step, each.epoch) for each in lines(tmp_path, IterationLine)]
    assert told == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)]


def test_a_start_from_a_checkpoint_goes_on_in_the_recordings_of_the_one_before(tmp_path, plan, start):
    def begin(first, *steps):
        epoch = begin_recordings(tmp_path, plan)
        trainings = [start(tmp_path, plan, server, epoch=epoch) for server in plan.programs]
        view = first_view(plan, epoch, first)
        for training in trainings:
            training.recording.tell(view)
            training.recording.enter(epoch, first)
            training.make(*steps)
        return epoch

    assert begin(0, 0, 1, 2) == 0
    assert begin(1, 1, 2, 3) == 1
    assert [total.step for total in totals_of(load_lines(tmp_path))] == [0, 1, 2, 3]
    change = history_of(load_lines(tmp_path)).changes[0]
    assert (change.view.restore, change.again) == ("checkpoint", 2)


def test_without_protection_the_first_server_tells_of_the_view(tmp_path, start):
    plan = paper_plan(failed=(Server(1, 2),))
    for server in (Server(0, 0), LAST):
        start(tmp_path, plan, server).make(4)
    (view,) = lines(tmp_path, ViewLine)
    assert (view.step, view.epoch, len(view.servers)) == (4, 0, 11)


def test_who_came_back_says_so_in_a_recording_of_its_own(tmp_path, plan, start):
    start(tmp_path, plan)
    start(tmp_path, plan, life=1)
    again = lines(tmp_path / "events" / "W0_3#1.jsonl", InstantLine)
    assert [each.text for each in again] == ["W0_3 is started again"]


def test_nobody_writes_who_speaks_for_no_server(tmp_path, plan):
    assert Recording.open(None, plan, 0, Member(LAST, 0), SOLE, 4) is None
    assert Recording.open(tmp_path, plan, 0, Member(LAST, 0), ServerRank(1, 2), 4) is None
    assert begin_recordings(None, plan) == 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, plan):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        begin_recordings(tmp_path / "file", plan)
