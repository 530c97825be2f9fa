"""Checkpoints where servers are dead or die meanwhile: all who live write the same one, as often as it takes."""

import errno
import importlib
import re
import resource
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed.checkpoint.api import CheckpointException

from harness.flag_runs import follow, fork, make_dataset, missing, needs_training, train
from harness.local import launch
from harness.ranks import results_of
from recycle.megatron.flag.state import saving
from recycle.megatron.flag.state.saving import save_by_the_living
from recycle.runtime.errors import ViewBroken

pytestmark = needs_training
WORLD_SIZE = 8


@pytest.fixture(autouse=True)
def imported():
    if not missing:
        importlib.import_module("megatron.training.checkpointing")


class Writer:
    """A rank that saves, with a stand-in for Megatron's function and for what is known of the view.

    Args:
        rank: which.
        path: where checkpoints lie.
        attempts: the epochs in which this rank comes to save.
    """

    def __init__(self, rank, path, attempts):
        self.rank = rank
        self.path = path
        self.epoch = 0
        self.settled = 0
        self.context = {"save_strategy": "of before", "load_strategy": "of before", "local_checkpoint_manager": "kept"}
        self.arguments = SimpleNamespace(
            save=str(path), non_persistent_global_ckpt_dir=None, world_size=WORLD_SIZE, train_iters=8
        )
        self.seen = []
        self.notes = []
        self._attempts = attempts

    def settle(self):
        self.settled += 1

    def together(self, kind, act):
        assert kind == "save"
        for epoch in self._attempts:
            self.epoch = epoch
            with suppress(ViewBroken):
                act()

    def save(self, iteration, checkpointing_context, non_persistent_ckpt=False):
        dist.barrier()
        files = sorted(each.name for each in self.path.glob("iter_*/*"))
        self.seen.append((iteration, self.arguments.world_size, files, dict(checkpointing_context)))
        dist.barrier()
        checkpointing_context["save_strategy"] = f"of {self.epoch}"
        folder = self.path / f"iter_{iteration:07}"
        folder.mkdir(exist_ok=True)
        (folder / f"{self.rank}.distcp").touch()


def ranks_save(path, attempts, **keywords):
    """Two ranks save once; gives what the function of Megatron's found each time, by rank.

    Args:
        attempts: by rank.
        keywords: of that function.
    """

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=member.rank, world_size=2)
        writer = Writer(member.rank, path, attempts[member.rank])
        save_by_the_living(writer.save, writer, writer.arguments, writer.notes.append)(4, writer.context, **keywords)
        assert writer.settled == 1
        assert writer.notes == [True]
        assert writer.arguments.world_size == WORLD_SIZE
        return writer.seen

    found = results_of(2, body)
    return [found[rank] for rank in range(2)]


KEPT = {"local_checkpoint_manager": "kept"}


def test_while_all_live_megatron_saves_once_and_says_how_many_there_are(tmp_path):
    assert ranks_save(tmp_path, [[3], [3]]) == [[[4, 2, [], KEPT]]] * 2


def test_after_a_death_in_the_middle_nothing_of_what_was_begun_is_left(tmp_path):
    """What was divided among more ranks is forgotten too, and checkpoints before stay."""
    before = tmp_path / "iter_0000003" / "0.distcp"
    before.parent.mkdir()
    before.touch()
    again = [4, 2, ["0.distcp"], KEPT]
    assert ranks_save(tmp_path, [[3, 4], [3, 4]]) == [[again, again]] * 2


BEGUN, HALF, WRITTEN, TRUNCATED, NAMED = range(5)
"""Moments of a save."""


class Disk:
    """Where one rank saves as Megatron does, whose save is cut short at a moment; the whole checkpoints there.

    Args:
        path: of checkpoints.
        is_kept: whether they are persistent.
    """

    def __init__(self, path, is_kept):
        self.arguments = SimpleNamespace(
            save=str(path / "saves"),
            non_persistent_global_ckpt_dir=None if is_kept else str(path / "scratch"),
            world_size=WORLD_SIZE,
            train_iters=8,
        )
        self.folder = path / ("saves" if is_kept else "scratch")
        self.is_kept = is_kept
        self.epoch = 0
        self.cut = None
        self.error = ViewBroken

    @property
    def named(self):
        """What the tracker names, and whether that is whole."""
        name = (self.folder / "latest_checkpointed_iteration.txt").read_text()
        return int(name), (self.folder / f"iter_{int(name):07}" / "whole").is_file()

    def settle(self):
        pass

    def together(self, kind, act):
        for _ in range(2):
            self.epoch += 1
            with suppress(ViewBroken):
                act()
                return

    def save(self, iteration, checkpointing_context, non_persistent_ckpt=False):
        from megatron.training import checkpointing

        if non_persistent_ckpt:
            checkpointing.cleanup_old_non_persistent_checkpoint(self.folder)
        folder = self.folder / f"iter_{iteration:07}"
        folder.mkdir(parents=True, exist_ok=True)
        # A checkpoint is written over where there is one.
        (folder / "whole").unlink(missing_ok=True)
        self.reach(BEGUN)
        (folder / "half").touch()
        self.reach(HALF)
        (folder / "whole").touch()
        self.reach(WRITTEN)
        with (self.folder / "latest_checkpointed_iteration.txt").open("w") as tracker:
            self.reach(TRUNCATED)
            tracker.write(str(iteration))
        self.reach(NAMED)

    def reach(self, moment):
        """Fail there once, or check that a start would find a whole checkpoint."""
        if moment == self.cut:
            self.cut = None
            raise self.error
        assert moment == TRUNCATED or self.named[1], moment


FULL = OSError(errno.ENOSPC, "No space left on device")
WORSE = CheckpointException("write", {1: (RuntimeError("results_queue should not be empty"), [])})


@pytest.mark.parametrize("error", [ViewBroken("somebody is gone"), FULL, WORSE])
@pytest.mark.parametrize("is_kept", [True, False])
def test_at_every_moment_the_tracker_names_a_whole_checkpoint(tmp_path, monkeypatch, is_kept, error):
    """The save of 4 is cut short at each moment by a death or a full disk, or the whole job was in it before."""
    monkeypatch.setattr(saving, "say", lambda text: None)

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        for left in ((), (4,), (5,)):
            for cut in (BEGUN, HALF, WRITTEN, TRUNCATED, NAMED):
                disk = Disk(tmp_path / f"{left}{cut}", is_kept)
                notes = []
                save = save_by_the_living(disk.save, disk, disk.arguments, notes.append)
                keywords = {"checkpointing_context": {}, "non_persistent_ckpt": not is_kept}
                disk.folder.mkdir(parents=True)
                (disk.folder / "latest_checkpointed_iteration.txt").write_text("3")
                (disk.folder / "iter_0000003").mkdir()
                (disk.folder / "iter_0000003" / "whole").touch()
                for each in left:
                    (disk.folder / f"iter_{each:07}").mkdir()
                disk.cut, disk.error = cut, error
                save(4, **keywords)
                is_written = cut == NAMED or isinstance(error, ViewBroken)
                assert disk.named == (4 if is_written else 3, True)
                assert notes == [is_written]
                assert (disk.folder / "iter_0000004").is_dir() == is_written
                save(6, **keywords)
                assert disk.named == (6, True)

    launch(1, body)


def test_what_another_rank_could_not_write_is_refused_by_the_first_one_in_the_words_of_the_system(
    tmp_path, monkeypatch
):
    """Torch tells the first rank what went wrong on which, and the others that something did."""
    monkeypatch.setattr(saving, "say", lambda text: told.append(text))
    told = []
    causes = {
        "Worker failure: [Errno 28] No space left on device: '/saves/__1_0.distcp'": "No space left on device",
        "Incomplete worker results (expected 2, got 0.": "Incomplete worker results (expected 2, got 0.",
    }

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=member.rank, world_size=2)
        for text in causes:
            writer = Writer(member.rank, tmp_path, [3, 4])
            failures = {} if member.rank else {1: (RuntimeError(text), [])}

            def save(iteration, checkpointing_context, writer=writer, failures=failures):
                writer.save(iteration, checkpointing_context)
                raise CheckpointException("write", failures)

            save_by_the_living(save, writer, writer.arguments, writer.notes.append)(4, writer.context)
            assert (len(writer.seen), writer.notes) == (1, [False])
        return told

    lines = [
        f"the checkpoint of iteration 4 cannot be written: {each}; training goes on, and earlier checkpoints are as "
        "they were"
        for each in causes.values()
    ]
    assert results_of(2, body) == {0: lines, 1: []}


def test_in_the_same_view_megatron_keeps_what_it_has_divided(tmp_path):
    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        writer = Writer(0, tmp_path, [3])
        save = save_by_the_living(writer.save, writer, writer.arguments, writer.notes.append)
        for iteration in (4, 8):
            save(iteration, checkpointing_context=writer.context)
        assert [each[3].get("save_strategy") for each in writer.seen] == [None, "of 3"]

    launch(1, body)


def test_results_of_a_save_that_was_given_up_are_not_taken_for_those_of_the_next_one(tmp_path):
    def body(member):
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        results = filesystem_async._results_queue = SimpleQueue()
        writer = Writer(0, tmp_path, [3, 4])
        writer.save = lambda iteration, checkpointing_context: (found.append(results.empty()), results.put("written"))
        found = []
        save_by_the_living(writer.save, writer, writer.arguments, writer.notes.append)(4, None)
        assert found == [True, True]

    launch(1, body)


def test_the_thread_that_removes_an_old_checkpoint_notes_how_many_ranks_were_started(tmp_path, monkeypatch):
    """Megatron ends if the log of a job's progress has another number."""
    from megatron.training import checkpointing, training
    from megatron.training.global_vars import set_args

    log = tmp_path / "progress.txt"
    log.write_text(f"2026-01-01 00:00:00\tJob ID: \t# GPUs: {WORLD_SIZE}\tStarting job\n")
    (tmp_path / "iter_0000002").mkdir()

    def save_while_some_are_dead(kind, act):
        with monkeypatch.context() as living:
            living.setattr(dist, "get_world_size", lambda _=None: 1)
            act()

    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        monkeypatch.setattr(dist, "get_world_size", lambda _=None: WORLD_SIZE)
        writer = Writer(0, tmp_path, [3])
        writer.together = save_while_some_are_dead
        set_args(writer.arguments)
        removing = Thread(target=lambda: checkpointing._async_delete_checkpoint_impl(str(tmp_path), 2, True))

        def save(iteration, checkpointing_context):
            removing.start()
            # It has noted it by then, or does so later.
            removing.join(0.2)

        save_by_the_living(save, writer, writer.arguments, writer.notes.append)(4, None)
        removing.join()
        training.get_start_time_from_progress_log()

    launch(1, body)
    assert "Deleted checkpoint" in log.read_text()


def test_when_saving_fails_megatrons_arguments_are_as_they_were(tmp_path):
    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=0, world_size=1)
        writer = Writer(0, tmp_path, [3])

        def fail(iteration, checkpointing_context):
            raise ConnectionResetError("a mistake of somebody else's")

        with pytest.raises(ConnectionResetError):
            save_by_the_living(fail, writer, writer.arguments, writer.notes.append)(4, None)
        assert writer.arguments.world_size == WORLD_SIZE

    launch(1, body)


@pytest.mark.parametrize("in_words_of_torch", [False, True])
@pytest.mark.parametrize("iteration", [4, 8])
def test_a_full_disk_of_one_is_nobodys_death_and_all_go_on_without_the_checkpoint(
    tmp_path, monkeypatch, in_words_of_torch, iteration
):
    def body(member):
        dist.init_process_group("gloo", store=PrefixStore("torch", member.store()), rank=member.rank, world_size=2)
        writer = Writer(member.rank, tmp_path, [3, 4])

        def save(iteration, checkpointing_context):
            writer.save(iteration, checkpointing_context)
            if member.rank == 0:
                return
            if not in_words_of_torch:
                raise RuntimeError("Worker failure") from OSError(errno.ENOSPC, "No space left on device")
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

        save_by_the_living(save, writer, writer.arguments, writer.notes.append)(iteration, writer.context)
        assert len(writer.seen) == 1
        assert writer.notes == [False]
        assert writer.arguments.world_size == WORLD_SIZE
        return told

    told = []
    monkeypatch.setattr(saving, "say", told.append)
    cause = "File too large" if in_words_of_torch else "No space left on device"
    after = {4: "training goes on, and earlier checkpoints are as they were"}
    after[8] = "training has ended without it: make room, and go on from an earlier one with --load"
    text = f"the checkpoint of iteration {iteration} cannot be written: {cause}; {after[iteration]}"
    assert results_of(2, body) == {0: [], 1: [text]}
    assert list(tmp_path.iterdir()) == []


PERSISTENT = ("--ckpt-format", "torch", "--save-interval", 2, "--save-retain-interval", 100)
SCRATCH = ("--ckpt-format", "torch_dist", "--non-persistent-ckpt-type", "global")
SCRATCH += ("--non-persistent-save-interval", 2, "--save-interval", 100)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("saves", "accidents", "found"),
    [
        # The last rank dies when the second checkpoint is whole, which is not begun again.
        (PERSISTENT, "3:named:2", 4),
        # It dies in the middle of the second one, and all others when that is made again.
        pytest.param(SCRATCH, "3:written:2,0:written:3,1:written:3,2:written:3", 2, marks=pytest.mark.long),
    ],
)
def test_whatever_dies_in_a_save_a_start_loads_the_whole_checkpoint(tmp_path, saves, accidents, found):
    dataset, folder = make_dataset(tmp_path / "text"), tmp_path / "saves"
    on = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
    saved = (*saves, "--save", folder, "--exit-interval", 4)
    with fork(dataset, *on, *saved, script="accident_prone_gpt.py", told={"ACCIDENTS": accidents}) as started:
        output = follow(started, lambda started, output: None)
    assert "W1_1 was killed by signal 9 (SIGKILL)" in output
    assert output.count("successfully saved checkpoint") == found / 2
    onward = train(dataset, *saves[:4], "--load", folder, "--exit-interval", found + 1)
    assert list(onward.trained) == [found + 1]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", [pytest.param("torch", marks=pytest.mark.long), "torch_dist"])
def test_a_run_goes_on_without_a_checkpoint_and_makes_the_next_one(tmp_path, format):
    dataset, saves = make_dataset(tmp_path / "text"), tmp_path / "saves"
    saves.write_text("a file where the folder should be")
    # All wait there until there is room.
    held = tmp_path / "5"
    held.touch()

    def make_room(started, output):
        if "iteration        5/" in output and saves.is_file():
            saves.unlink()
            held.unlink()

    on = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
    on += ("--ckpt-format", format, "--save-interval", 4, "--save", saves)
    told = {"HELD": str(tmp_path)}
    output = train(dataset, *on, watch=make_room, script="held_gpt.py", told=told).output
    said = r"recycle: the checkpoint of iteration 4 cannot be written: (File exists|Not a directory); training goes on"
    assert re.search(said, output)
    assert "training goes on with 4 servers" in output
    assert "was killed" not in output
    assert (saves / "latest_checkpointed_iteration.txt").read_text() == "8"


@pytest.mark.timeout(1200)
def test_a_run_without_its_last_checkpoint_ends_as_one_that_failed(tmp_path):
    dataset, saves = make_dataset(tmp_path / "text"), tmp_path / "saves"
    saves.write_text("a file where the folder should be")
    on = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
    with fork(dataset, *on, "--train-iters", 3, "--save-interval", 3, "--save", saves) as started:
        output = follow(started, lambda started, output: None)
    assert started.returncode != 0
    assert "training has ended without it: make room, and go on from an earlier one with --load" in output
    assert "Traceback" not in output
    assert "died" not in output
