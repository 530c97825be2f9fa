"""Checkpoints where servers are dead or die meanwhile: all who live write the same one, as often as it takes."""

import importlib
from types import SimpleNamespace

import msgspec
import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore

from harness.flag_runs import missing, needs_training
from recycle.megatron.flag.saving import save_by_the_living
from recycle.runtime.launch.local import launch

GIVEN = ("torch_dist", True, True)


@pytest.fixture(autouse=True)
def without_cuda():
    """What lets megatron.training be imported here."""
    if not missing:
        from recycle.megatron.flag.cpu_training import stand_in_for_triton

        stand_in_for_triton()
        importlib.import_module("megatron.training.checkpointing")


class Writer:
    """A rank that saves, with Megatron's arguments and a stand-in for its function, which notes how it was called.

    Args:
        rank: which.
        path: where checkpoints lie.
        view: who is alive, as this rank knows it.
    """

    def __init__(self, rank, path, view):
        self.rank = rank
        self.path = path
        self.view = view
        self.formats = []
        self.seen = []
        self.arguments = SimpleNamespace(save=str(path), **dict(zip(NAMES, GIVEN, strict=True)))

    def save(self, iteration, *, model):
        assert (iteration, model) == (4, "model")
        self.formats.append(tuple(getattr(self.arguments, name) for name in NAMES))
        self.seen.append(sorted(each.name for each in self.path.glob("iter_*/*")))
        dist.barrier()
        self.meanwhile(len(self.formats))
        dist.barrier()

    def meanwhile(self, attempt):
        """What happens while it saves."""

    def lose(self):
        self.view.epoch += 1
        self.view.has_lost = True


NAMES = ("ckpt_format", "use_dist_ckpt", "async_save")
TORCH = ("torch", False, False)


def run(path, prepare, has_lost=False):
    """Two ranks save once; gives the formats in which each has called Megatron's function, and what lay there then.

    Args:
        prepare: called with each Writer before it saves.
    """
    heard = {}

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=member.rank, world_size=2)
        writer = Writer(member.rank, path, SimpleNamespace(epoch=0, has_lost=has_lost, settle=lambda: None))
        prepare(writer)
        save_by_the_living(writer.save, writer.view, writer.arguments)(4, model="model")
        assert tuple(getattr(writer.arguments, name) for name in NAMES) == GIVEN
        # Were one of them a call ahead of the other, it would get the other's answer.
        found = [None, None]
        dist.all_gather_object(found, member.rank)
        assert found == [0, 1]
        member.report(msgspec.msgpack.encode((writer.formats, writer.seen)))

    launch(2, body, lambda rank, content: heard.update({rank: content}))
    formats, seen = zip(*(msgspec.msgpack.decode(heard[rank]) for rank in range(2)), strict=True)
    return [[tuple(each) for each in attempts] for attempts in formats], list(seen)


def test_while_all_live_megatron_saves_once_as_it_was_told(tmp_path):
    assert run(tmp_path, lambda writer: None)[0] == [[GIVEN]] * 2


@needs_training
@pytest.mark.parametrize("notices", [{0}, {1}, {0, 1}])
def test_after_a_death_in_the_middle_all_save_again_in_a_format_that_the_living_can_write(tmp_path, notices):
    def prepare(writer):
        def meanwhile(attempt):
            if attempt == 1 and writer.rank in notices:
                writer.lose()

        writer.meanwhile = meanwhile

    assert run(tmp_path, prepare)[0] == [[GIVEN, TORCH]] * 2


@needs_training
@pytest.mark.parametrize("knows", [0, 1])
def test_who_knows_of_a_death_before_the_others_does_not_save_in_another_way(tmp_path, knows):
    def prepare(writer):
        if writer.rank == knows:
            writer.lose()
            return
        # The other one is told in its next call.
        for name in ("all_reduce", "barrier"):
            setattr(dist, name, losing(writer, getattr(dist, name)))

    assert run(tmp_path, prepare)[0] == [[TORCH, TORCH]] * 2


def losing(writer, call):
    def act(*arguments, **keywords):
        call(*arguments, **keywords)
        if not writer.view.has_lost:
            writer.lose()

    return act


@needs_training
@pytest.mark.parametrize(
    ("files", "left"), [(["common.pt", "__0_0.distcp"], []), (["model.pt", "other"], ["model.pt", "other"])]
)
def test_of_what_was_begun_only_another_format_is_removed(tmp_path, files, left):
    for iteration in ("iter_0000004", "iter_0000003"):
        for file in files:
            path = tmp_path / iteration / file
            path.parent.mkdir(exist_ok=True)
            path.touch()
    formats, seen = run(tmp_path, lambda writer: None, has_lost=True)
    assert formats == [[TORCH]] * 2
    # The checkpoint before stays.
    assert seen == [[sorted([*left, *files])]] * 2


@needs_training
def test_when_saving_fails_megatrons_arguments_are_as_they_were(tmp_path):
    def prepare(writer):
        def meanwhile(attempt):
            raise OSError("disk full")

        writer.meanwhile = meanwhile

    heard = {}

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        writer = Writer(0, tmp_path, SimpleNamespace(epoch=3, has_lost=True, settle=lambda: None))
        prepare(writer)
        with pytest.raises(OSError, match="disk full"):
            save_by_the_living(writer.save, writer.view, writer.arguments)(iteration=4, model="model")
        assert tuple(getattr(writer.arguments, name) for name in NAMES) == GIVEN
        member.report(b"kept")

    launch(1, body, lambda rank, content: heard.update({rank: content}))
    assert heard == {0: b"kept"}
