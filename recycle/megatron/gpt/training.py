"""Training a GPT on text by a plan: a process per live server of this machine, with events and checkpoints."""

import os
import signal
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from recycle.control.host.agent import run_agent
from recycle.control.membership.view import Member, View
from recycle.faults.fired import FiredFile
from recycle.faults.menu import Fault, Faults
from recycle.files import own_folder
from recycle.megatron.gpt.device import prepare_device, require_means
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.keeping import make_keeping, take_slot
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.gpt.resuming import (
    begins_anew,
    find_newest,
    note_settings,
    require_fit,
    set_earlier_aside,
)
from recycle.megatron.gpt.run import Run
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.text import TokenText
from recycle.plan.catalogue import Catalogue
from recycle.plan.moves import Mover
from recycle.record.history import next_epoch
from recycle.record.recording import InstantLine
from recycle.record.reporting import Event, FileReporter, Reporter, SilentReporter
from recycle.runtime.checkpoint_folders import checkpoints, refuse_to_overwrite
from recycle.runtime.errors import RunError
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.injection import Injector
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
from recycle.runtime.step.checkpoint import adopt, give_up

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
        adopt(run.resume_from, run.checkpoints)
    newest = find_newest(run, text.fingerprint, watch) if run.goes_on else None
    if not run.goes_on:
        refuse_to_overwrite(run.folder)
    give_up(run.checkpoints)
    set_earlier_aside(run)
    run.save()
    note_settings(run, text.fingerprint)
    planning = with_catalogue(Planning(make, mover), run)
    setting = Setting(
        job=run.plan.job,
        view=view,
        step=newest or 0,
        restore="checkpoint" if run.goes_on else "memory",
        fingerprint=run.fingerprint(text.fingerprint),
        durations=run.durations,
        host=run.host,
        faults=faults,
        folder=run.folder,
        durable=lambda: bool(run.redundancy or checkpoints(run.checkpoints)),
        restarts=run.restarts,
        meeting=meeting,
        keeping=take_slot(run, meeting),
        ranks=run.ranks,
        cluster=run.cluster,
    )
    Supervisor(setting, partial(serve_member, run, text, planning, faults), watch).run()


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
        UserError: it cannot be read, or is of another job.
    """
    if run.catalogue is None:
        return planning
    return planning._replace(catalogue=Catalogue(run.catalogue, run.plan.job, held=True))


def serve_member(
    run: Run,
    text: TokenText,
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


def _work(run: Run, text: TokenText, planning: Planning, faults: Faults, member: Member, door: RunAccess) -> int:
    """A worker's process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_title(door.rank.of(member.server))
    torch.set_num_threads(1)  # its peers want the other cores
    lost = partial(say_launcher_lost, door.endpoint, run.events, door.take_over)
    # Who comes later may find that the run has lost its first process.
    send = LauncherConnection(
        door.watch, door.endpoint.token, door.rank.of(member), os.getpid(), lost, required=not member.incarnation
    )

    def survive() -> int:
        device = prepare_device(run, member.server, door.rank)
        reporter: Reporter = SilentReporter()
        if door.rank.is_first:
            name = str(member.server) if member.incarnation == 0 else str(member)
            reporter = FileReporter(
                run.events,
                name,
                f"{run.plan.job.name}, trained",
                lambda content: send(ReportMessage(content)),
                ahead=send.ahead,
            )
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

            hooks.append(Injector(mine, tell, lambda: trained.gradients, (*door.endpoint.ports, door.watch[1])))
        keeping = make_keeping(run, trained, member.server, door.rank, door.endpoint, reporter)
        hooks += [keeping] if keeping is not None else []
        survivor = Survivor(
            member,
            run.plan.job,
            trained.trainee._replace(kept=keeping),
            door.endpoint,
            run.durations,
            Plans(run.plan, planning.catalogue, planning.make, planning.mover),
            reporter,
            hooks,
        )
        be_told_to_leave(survivor.tell_to_leave)
        return TrainingLoop(survivor, trained).run()

    return run_and_tell(survive, send)
