"""Checkpoints that Megatron has not planned: each is made once, by all, whatever view they heard of it in."""

import signal
from types import SimpleNamespace

import pytest
import torch

from harness.examples import paper_job
from recycle.megatron.flag.run.ending import Ending
from recycle.runtime.execute.notices import Notices
from tests.megatron.flag.live_servers import live_ranks

pytestmark = pytest.mark.usefixtures("let_go")

LOST, QUIET, TOLD = Notices(unprotected=1), Notices(), Notices(leaving=(1, 0))


def arguments_of(save="here", save_interval=None):
    return SimpleNamespace(
        save=save, save_interval=save_interval, exit_signal_handler=False, exit_signal=signal.SIGTERM
    )


def ends_at(ending, iterations, monkeypatch, exits=False):
    """In which iterations a checkpoint is made that is not planned, and in which the training is ended."""
    saved, ended = [], []
    training = SimpleNamespace(
        checkpoint_and_decide_exit=lambda *_: exits,
        save_checkpoint_and_time=lambda iteration, *_, train_data_iterator: saved.append(iteration),
    )
    ending.install(training)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    for iteration in iterations:
        if training.checkpoint_and_decide_exit(None, None, None, iteration, 0, None, "data"):
            ended.append(iteration)
    return saved, ended


def test_when_the_store_is_lost_one_checkpoint_is_made_and_one_more_when_it_is_lost_again(monkeypatch):
    ending = Ending(arguments_of())
    heard = {3: LOST, 4: LOST, 5: QUIET, 6: LOST}
    made = []
    for step in range(9):
        ending.note(step, heard.get(step, QUIET), is_end=False)
        saved, ended = ends_at(ending, [step + 1], monkeypatch)
        assert not ended
        made += saved
    assert made == [4, 7]


@pytest.mark.parametrize(
    ("arguments", "exits", "saved", "said"),
    [
        (arguments_of(), False, [5], "after 5 iterations, with a checkpoint"),
        (arguments_of(save=None), False, [], "after 5 iterations, without a checkpoint, as --save is not given"),
        # Megatron has made it.
        (arguments_of(save_interval=5), False, [], "with a checkpoint"),
        (arguments_of(save_interval=4), False, [5], "with a checkpoint"),
        (arguments_of(), True, [], "with a checkpoint"),
    ],
)
def test_who_is_told_to_end_ends_with_a_checkpoint(monkeypatch, capsys, arguments, exits, saved, said):
    ending = Ending(arguments)
    ending.note(4, TOLD, is_end=True)
    assert ends_at(ending, [5], monkeypatch, exits) == (saved, [5])
    assert capsys.readouterr().err.count(said) == 1


def test_who_is_told_to_end_says_that_the_checkpoint_could_not_be_written(monkeypatch, capsys):
    ending = Ending(arguments_of())
    ending.note(4, TOLD, is_end=True)
    ending.note_save(False)
    assert ends_at(ending, [5], monkeypatch) == ([5], [5])
    assert "after 5 iterations, and their checkpoint could not be written\n" in capsys.readouterr().err


def test_before_and_after_what_is_due_nothing_happens(monkeypatch):
    ending = Ending(arguments_of())
    ending.note(4, TOLD, is_end=False)
    assert ends_at(ending, range(1, 9), monkeypatch) == ([], [])
    ending.note(4, TOLD, is_end=True)
    assert ends_at(ending, [1, 2, 3, 4, 6], monkeypatch) == ([], [])


def test_what_one_rank_has_noted_all_know_in_the_next_view(monkeypatch):
    """The others were interrupted before they could hear of it."""
    job = paper_job(pipelines=2, stages=2)
    servers = job.servers()

    def work(live):
        ending = Ending(arguments_of())
        if (live.server, live.rank.number) == (servers[2], 1):
            ending.note(6, TOLD, is_end=True)
        ending.connect(live.network)
        return ending

    endings = live_ranks(job, [servers], work, 2)
    assert len(endings) == 8
    for ending in endings.values():
        assert ending.ends
        assert ends_at(ending, range(5, 9), monkeypatch) == ([7], [7])


@pytest.mark.parametrize("asks", [None, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
@pytest.mark.parametrize("ends", [False, True])
def test_sigterm_tells_a_process_to_leave_unless_megatron_takes_it(asks, ends):
    def taken_by_megatron(*_):
        raise AssertionError

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
    told = []
    arguments = arguments_of()
    arguments.exit_signal_handler, arguments.exit_signal = asks is not None, asks or signal.SIGTERM
    arguments.exit_signal_handler_for_training = ends
    try:
        if asks is not None:
            signal.signal(asks, taken_by_megatron)
        if ends:
            signal.signal(signal.SIGTERM, taken_by_megatron)
            signal.signal(signal.SIGINT, taken_by_megatron)
        Ending(arguments).listen(told.append)
        kept = {number for number in before if signal.getsignal(number) == taken_by_megatron}
        assert kept == {asks} - ({None, signal.SIGTERM, signal.SIGINT} if ends else {None})
        if signal.SIGTERM not in kept:
            signal.raise_signal(signal.SIGTERM)
            assert told == ["SIGTERM"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
