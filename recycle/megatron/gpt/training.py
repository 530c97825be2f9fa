"""Training a GPT on text by a plan: a process per live server of this machine, with events and checkpoints."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import torch

from recycle.control.board.joinfile import last_token
from recycle.control.host.agent import run_agent
from recycle.control.membership.view import Member, View
from recycle.errors import UserError
from recycle.faults.fired import FiredFile
from recycle.faults.menu import Fault, Faults
from recycle.files import from_json, own_folder, read_bytes, resolved, write_whole
from recycle.megatron.gpt.checkpointing import find_fault
from recycle.megatron.gpt.device import prepare_device, require_means
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.memory_copies import make_keeper_copies, take_slot
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.gpt.run_settings import NO_PARITY, Run
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.text import ByteText
from recycle.plan.catalogue import Catalogue
from recycle.plan.moves import Mover
from recycle.record.reading import next_epoch
from recycle.record.recording import InstantLine
from recycle.record.reporting import Event, FileReporter, Reporter, Reporters
from recycle.runtime.checkpoint_folders import (
    Manifest,
    candidates,
    checkpoints,
    finished,
    manifest_of,
    refuse_to_overwrite,
    require_checkpoint,
)
from recycle.runtime.errors import RunError
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.injection import Injector
from recycle.runtime.launch.meet.keepers import is_kept
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.process.messages import ReportMessage, run_and_tell
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.process.said_once import say_launcher_lost
from recycle.runtime.launch.process.signals import be_told_to_leave
from recycle.runtime.launch.process.title import set_title
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.supervisor import FIRED, Supervisor
from recycle.runtime.recover.plans import Maker, Planning, Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import (
    adopt,
    give_up,
    read_manifest,
    require_same_settings,
    set_aside,
)

IN_MEMORY = "in-memory.json"
"""The settings of what a run keeps in memory: keepers are asked for it by those who have been started."""

TO_LOOK_AT = ("events", "failures", "faults.jsonl", "tensorboard", "loss.svg")
"""What a run leaves in its folder that another one in the same folder must not go on with."""

Watch = Callable[[Event], None]


def train(
    run: Run,
    watch: Watch,
    make: Maker,
    faults: Faults,
    meeting: Rendezvous | None = None,
    mover: Mover | None = None,
) -> None:
    """Train with a process per live server: forked here, or started apart, of which this is the first.

    Args:
        run: what to do.
        watch: called with every event of every server.
        make: makes a plan when servers fail, for which no catalogue has one.
        faults: what goes wrong on purpose.
        meeting: with the other processes; None where all are forked here.
        mover: decides whether chunks move; None where they do not.

    Raises:
        UserError: something that was asked for cannot be done.
        RunFailed: the run did not come to its end.
    """
    run = msgspec.structs.replace(run, resume_from=None) if begins_anew(run) else run
    require_means(run.model, run.device, len(run.plan.job.stages))
    transformer_config(run.model, len(run.plan.job.stages))
    if run.model.exact and run.model.tied and len(run.plan.job.stages) == 1:
        raise RunError(
            "exact is on: sums are not exact where one stage uses the embedding twice; do without it, or take at least "
            "two stages"
        )
    view = View.of(run.plan, next_epoch(run.folder) if run.goes_on else 0)
    if meeting is not None:
        _require_fit(run, len(view.servers), meeting.start.count, faults)
    text = load_text(run.text, run.model)
    require_fit(run, text.fingerprint)
    # The run's own folder may be one that its user has opened to others.
    own_folder(run.checkpoints)
    if run.resume_from is not None and not checkpoints(run.checkpoints):
        adopt(run.resume_from, run.checkpoints, find_fault)
    newest = find_newest(run, text.fingerprint, watch) if run.goes_on else None
    if not run.goes_on:
        refuse_to_overwrite(run.folder)
    give_up(run.checkpoints)
    set_earlier_aside(run)
    run.save()
    if run.redundancy is None:
        (run.folder / IN_MEMORY).unlink(missing_ok=True)
    planning = with_catalogue(Planning(make, mover), run)
    setting = Setting(
        job=run.plan.job,
        view=view,
        step=newest or 0,
        restore="checkpoint" if run.goes_on else "memory",
        fingerprint=run.fingerprint(text.fingerprint, planning.catalogue),
        durations=run.durations,
        host=run.host,
        faults=faults,
        folder=run.folder,
        durable=partial(_is_durable, run),
        restarts=run.restarts,
        meeting=meeting,
        keeping=take_slot(run, meeting, partial(begin_in_memory, run, text.fingerprint)),
        ranks=run.ranks,
        cluster=run.cluster,
    )
    Supervisor(setting, partial(serve_member, run, text, planning, faults), watch).run()


def _is_durable(run: Run) -> bool:
    """Whether a version is elsewhere than with the servers, as far as the file system says."""
    try:
        return bool(run.redundancy or checkpoints(run.checkpoints))
    except OSError:
        return True  # there may be one


def _require_fit(run: Run, servers: int, count: int, faults: Faults) -> None:
    if count != servers * run.ranks:
        each = "a process each" if run.ranks == 1 else f"{run.ranks} processes each"
        raise RunError(
            f"WORLD_SIZE is {count}, and the plan has {servers} live servers, {each}: "
            f"start torchrun with {servers * run.ranks} processes in all"
        )
    if faults.entries:
        raise RunError("faults: they are for a run on one machine, started by one command; leave them out")


def with_catalogue(planning: Planning, run: Run) -> Planning:
    """What plans, with the run's catalogue. It is read before processes are forked: they need it when its file is gone.

    Raises:
        UserError: it cannot be read, is of another job, or has no transfers.
    """
    if run.catalogue is None:
        return planning
    catalogue = Catalogue(run.catalogue, run.plan.job)
    catalogue.require_lowered()
    return planning._replace(catalogue=catalogue)


def serve_member(
    run: Run,
    text: ByteText,
    planning: Planning,
    faults: Faults,
    member: Member,
    door: RunAccess,
    began: Callable[[int], None] = lambda _: None,
) -> int:
    """An agent's process; the worker is forked from it.

    Args:
        run: what to do.
        text: that it trains on.
        planning: what plans when servers fail, with the run's catalogue.
        faults: what goes wrong on purpose.
        member: which life of which server this is.
        door: how it reaches the run.
        began: called with the worker's process once it is there.

    Returns:
        The worker's exit status, as the agent's function gives it.
    """
    set_title(f"agent of {door.rank.of(member.server)}")
    work = partial(_work, run, text, planning, faults, member, door)
    endpoint = door.endpoint
    access = endpoint.host_access(partial(set_title, "relay"))
    return run_agent(member, work, endpoint.connect_alone, endpoint.token, run.durations, began, door.rank, access)


def _work(run: Run, text: ByteText, planning: Planning, faults: Faults, member: Member, door: RunAccess) -> int:
    """A worker's process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_title(door.rank.of(member.server))
    torch.set_num_threads(1)  # its peers want the other cores
    lost = partial(say_launcher_lost, door.endpoint, run.folder)
    # Who comes later may find that the run has lost its first process.
    send = LauncherConnection(
        door.watch, door.endpoint.token, door.rank.of(member), os.getpid(), lost, required=not member.incarnation
    )

    def survive() -> int:
        if not door.rank.is_first:
            return live(Reporters())
        name = str(member.server) if member.incarnation == 0 else str(member)
        file = FileReporter(
            run.events,
            name,
            f"{run.plan.job.name}, trained",
            lambda content: send(ReportMessage(content)),
            ahead=send.ahead,
            clock=send.clock,
            iterations=run.iterations,
        )
        with closing(file):
            return live(file)

    def live(reporter: Reporter) -> int:
        device = prepare_device(run, member.server, door.rank)
        if member.incarnation:
            reporter.tell(InstantLine("warning", now(), str(member.server), f"{member.server} is started again"))
        trained = GptServer(run, member.server, text, reporter, keep=True, rank=door.rank, device=device)
        mine = faults.of_worker(member.server, member.incarnation) if door.rank.is_first else ()
        hooks: list[Hooks] = []
        if mine:

            def warn(text: str) -> None:
                reporter.tell(InstantLine("warning", now(), str(member.server), text))

            fired = FiredFile(run.folder / FIRED, warn, member.server, member.incarnation)

            def tell(fault: Fault, time_ns: int) -> None:
                fired.write(fault, time_ns)
                reporter.tell(InstantLine("fault", time_ns / 1000, str(member.server), str(fault)))

            hooks.append(Injector(mine, tell, lambda: trained.gradients, door.ports))
        copies = make_keeper_copies(run, trained, member.server, door.rank, door.endpoint, reporter)
        hooks += [copies] if copies is not None else []
        survivor = Survivor(
            member,
            run.plan.job,
            trained.trainee._replace(kept=copies),
            door.endpoint,
            run.durations,
            Plans(run.plan, planning.catalogue, planning.make, planning.mover),
            reporter,
            hooks,
        )
        trained.checkpoints.watched = partial(survivor.during, writes=True)
        be_told_to_leave(survivor.tell_to_leave)
        return TrainingLoop(survivor, trained).run()

    return run_and_tell(survive, send)


def begins_anew(run: Run) -> bool:
    """Whether it is to go on from its own folder, and there is nothing in it yet."""
    own = run.resume_from is not None and resolved(run.resume_from) == resolved(run.folder)
    kept = run.redundancy is not None and bool(last_token(run.folder))
    return own and not kept and not checkpoints(run.checkpoints)


def require_fit(run: Run, fingerprint: str) -> None:
    """Refuse to go on with other settings than what there is was made with, while nothing is written or started.

    Args:
        run: what is to go on.
        fingerprint: tells apart what is trained on.

    Raises:
        RunError: it cannot go on so.
    """
    if not run.goes_on:
        return
    found = checkpoints(run.checkpoints)
    sources = found or ([] if run.resume_from is None else candidates(run.resume_from))
    if sources and (manifest := _newest_manifest(sources)) is not None:
        require_same_settings(manifest[0], manifest[1].settings, run.settings | {"text": fingerprint})
    token = last_token(run.folder)
    if not token or (sources and not is_kept(token)):
        return
    if run.redundancy is not None:
        _require_fit_in_memory(run, fingerprint)
    elif not sources and _settings_in_memory(run):
        raise RunError(
            f"resume: there is no checkpoint in {run.checkpoints}, and what is in memory is not asked for; give "
            "--keep-in-memory as before"
        )


def _require_fit_in_memory(run: Run, fingerprint: str) -> None:
    """The same of what is in memory; nothing is asked of what cannot be read."""
    if kept := _settings_in_memory(run):
        what, asked = f"what {run.folder} has in memory", run.settings_in_memory(fingerprint)
        # Copies are read whatever is kept from now on.
        same = {"parity": kept["parity"]} if kept.get("parity") == NO_PARITY else {}
        require_same_settings(what, kept, asked | same)


def begin_in_memory(run: Run, fingerprint: str, there: bool) -> None:
    """Write down what is needed to judge whether a later start can go on from what this one keeps in memory.

    Args:
        run: which.
        fingerprint: tells apart what is trained on.
        there: whether any host has copies of an earlier start.

    Raises:
        UserError: it cannot be written, or those copies were made with other settings.
    """
    if there:
        _require_fit_in_memory(run, fingerprint)
    asked = msgspec.json.encode(run.settings_in_memory(fingerprint))
    write_whole(run.folder / IN_MEMORY, msgspec.json.format(asked), private=True)


def _newest_manifest(sources: Sequence[Path]) -> tuple[str, Manifest] | None:
    """Of the newest checkpoint that has one which can be read; all in a folder are of the same settings."""
    for folder in reversed(sources):
        with suppress(UserError, msgspec.DecodeError):
            return str(folder), manifest_of(folder)
    return None


def _settings_in_memory(run: Run) -> dict[str, Any]:
    """Of the last start in a run's folder; empty where it kept nothing, or that cannot be read."""
    with suppress(UserError, msgspec.DecodeError):
        return from_json(read_bytes(run.folder / IN_MEMORY), dict[str, Any])
    return {}


def find_newest(run: Run, fingerprint: str, watch: Callable[[Event], None]) -> int | None:
    """The step of the checkpoint that a run goes on from; None where keepers may have what it goes on from.

    Args:
        run: what is to go on.
        fingerprint: tells apart what is trained on.
        watch: is told of checkpoints that are damaged, and set aside.

    Raises:
        UserError: there is none that is whole, or nothing is left to do.
    """
    found = checkpoints(run.checkpoints)
    if not found and run.redundancy is not None and last_token(run.folder):
        return None  # what keepers have is known when servers ask them
    require_checkpoint(run.folder)
    damaged = {}
    while found and (damage := find_fault(found[-1])):
        damaged[found.pop()] = damage
    if not found:
        raise RunError(f"resume: no checkpoint in {run.checkpoints} is whole: {'; '.join(damaged.values())}")
    manifest = read_manifest(found[-1], run.settings | {"text": fingerprint})
    for folder, damage in damaged.items():
        text = f"{damage}: the checkpoint is set aside as {set_aside(folder)}, and {found[-1].name} is taken"
        watch(InstantLine("warning", now(), None, text))
    if manifest.step >= run.iterations:
        raise finished(found[-1], manifest.step, run.iterations)
    return manifest.step


def set_earlier_aside(run: Run) -> None:
    """Move what an earlier start has left to look at to a folder of its own, where this run does not go on from that.

    Raises:
        RunError: it cannot be moved.
    """
    left = [path for name in TO_LOOK_AT if (path := run.folder / name).exists()]
    if run.goes_on or not left:
        return
    aside = next(path for number in count(1) if not (path := run.folder / f"earlier-{number}").exists())
    try:
        own_folder(aside)
        for each in left:
            each.rename(aside / each.name)
    except OSError as error:
        raise RunError(f"{aside}: cannot be made: {error.strerror}; give another folder with --output") from error
