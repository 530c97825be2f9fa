"""Servers join a run of the real model by the real command, or are refused."""

import re
import sys

import msgspec
import pytest

from harness.examples import QUICK
from harness.forked import TRAINER
from harness.started import Started
from harness.waiting import ForReturn, wait_between
from recycle.control.board.joinfile import JOIN_FILE, JoinFile
from recycle.control.membership.errors import ControlError
from recycle.errors import UserError
from recycle.faults.menu import Kind
from recycle.job import Server
from recycle.megatron.gpt.arriving import join_run
from recycle.plan.instruction import Op
from recycle.planner.catalogue import make_catalogue
from recycle.record.recording import IterationLine, ViewLine
from recycle.runtime.recover.plans import Planning
from tests.survival.emulated import Once
from tests.survival.trained import MODEL, Trained, fault

ITERATIONS = 12
KILL = fault(Kind.KILL, "W1_0", 2, Op.F)
JOINER = Server(1, 0)


@pytest.fixture(scope="module")
def text(shared_runs):
    def write(folder):
        (folder / "text.txt").write_bytes(bytes(range(256)) * 100)

    # A run knows it by its path.
    return shared_runs.run("text", write, None).folder / "text.txt"


@pytest.fixture(scope="module")
def reference(shared_runs, text):
    return Trained.undisturbed(shared_runs, iterations=ITERATIONS, text=text)


def test_the_command_brings_a_server_back(tmp_path, reference, text, monkeypatch):
    wait_between(ForReturn(JOINER), monkeypatch.setattr)
    folder, joiners = tmp_path / "run", []
    # A joiner has to say what is due as often as those that wait for it.
    command = [sys.executable, "-m", "harness.scripts.held_train", "join", str(folder), "--server", str(JOINER)]

    def join():
        joiners.append(Started(command, variables={"HELD": str(tmp_path)}, imported=TRAINER))

    at_once = Once(lambda event: isinstance(event, ViewLine) and event.epoch == 1, join)
    run = Trained(folder, KILL, on_event=at_once, iterations=ITERATIONS, text=text)
    run.require_same(reference)
    assert [(each.epoch, len(each.servers), each.joined) for each in run.views] == [
        (0, 6, []),
        (1, 5, []),
        (2, 6, ["W1_0"]),
    ]
    assert joiners[0].ended() == 0, joiners[0].output
    with pytest.raises(ControlError, match=r"join.json: .*no run of this user is going on here"):
        join_run(run.run, None, Planning(Trained.make))


def test_who_does_not_belong_is_refused(tmp_path, text, monkeypatch):
    refused = []

    def refuse():
        options = {"iterations": 12, "text": text}
        run = Trained.describe(folder, **options)

        def attempt(run, server=None):
            with pytest.raises(UserError) as error:
                join_run(run, server, Planning(Trained.make))
            refused.append(str(error.value))

        attempt(run)
        attempt(run, Server(0, 0))
        attempt(run, Server(9, 9))
        attempt(msgspec.structs.replace(run, model=msgspec.structs.replace(MODEL, dropout=0.2)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("recycle.megatron.gpt.run_settings.__version__", "0.0")
            attempt(run)
        make_catalogue(tmp_path / "plans.zip", run.plan.job, run.plan.mode, 0, QUICK, "lowered", lambda *_: None)
        attempt(msgspec.structs.replace(run, catalogue=tmp_path / "plans.zip"))
        stolen = JoinFile.read(folder / JOIN_FILE)
        (tmp_path / "other").mkdir()
        msgspec.structs.replace(stolen, token="f" * 64).write(tmp_path / "other" / JOIN_FILE)
        attempt(msgspec.structs.replace(run, folder=tmp_path / "other"))

    folder = tmp_path / "run"
    act = Once(lambda event: isinstance(event, IterationLine) and event.step == 2, refuse)
    run = Trained(folder, on_event=act, iterations=12, text=text)
    alive, named, none, model, version, catalogue, token = refused
    assert alive == "any server cannot join: it is not dead; the view of the run has it"
    assert named == "W0_0 cannot join: it is not dead; the view of the run has it"
    assert none.startswith("server W9_9: this job has pipelines 0 to ")
    assert "dropout is '0.2', and that of the run is '0.1'" in model
    assert "recycle is '0.0', and that of the run is" in version
    assert re.search(r": catalogue is '\w+', and that of the run is 'not given'", catalogue)
    assert "the store at a socket of this machine does not answer; no run of this user is going on here" in token
    assert run.error == ""
    assert [each.epoch for each in run.views] == [0]
