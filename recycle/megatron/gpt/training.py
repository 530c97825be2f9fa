"""Training a GPT on text by a plan: a process per live server of this machine, with events and checkpoints."""

import os
import signal
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from recycle.control.host.agent import run_agent
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, ServerRank, View
from recycle.errors import RunFailed
from recycle.faults.fired import FiredFile
from recycle.faults.menu import Fault, Faults
from recycle.megatron.gpt.device import prepare_device, require_means
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.keeping import make_keeping, take_slot
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.gpt.resuming import (
    begins_anew,
    find_newest,
    note_settings,
    refuse_to_overwrite,
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
from recycle.runtime.errors import NotFinite, RunError
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.injection import Injector
from recycle.runtime.launch.meet.apart import join
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.process.local import Process, launch
from recycle.runtime.launch.process.messages import ReportMessage, run_and_tell
from recycle.runtime.launch.process.report_channel import LauncherConnection
from recycle.runtime.launch.process.said_once import say_launcher_lost
from recycle.runtime.launch.process.signals import be_told_to_leave
from recycle.runtime.launch.process.title import set_title
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.supervisor import FIRED, Supervisor
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.runtime.net.stop_line import FreeLine
from recycle.runtime.recover.plans import Maker, Planning, Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop
from recycle.runtime.recover.view_reports import first_view, now
from recycle.runtime.step.checkpoint import adopt, checkpoints, give_up

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
        RunFailed: the run did not come to its end; ProcessFailed where a process of an unprotected run failed.
    """
    run = msgspec.structs.replace(run, resume_from=None) if begins_anew(run) else run
    require_means(run.model, run.device)
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
    # In an unprotected run that is started apart, all processes come here.
    is_first = meeting is None or meeting.start.rank == 0
    if is_first:
        require_fit(run, text.fingerprint)
        if run.resume_from is not None and not checkpoints(run.checkpoints):
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            adopt(run.resume_from, run.checkpoints)
    newest = find_newest(run, text.fingerprint, watch) if run.goes_on else None
    if is_first:
        refuse_to_overwrite(run)
        run.folder.mkdir(parents=True, exist_ok=True)
        give_up(run.checkpoints)
        set_earlier_aside(run)
        run.save()
        note_settings(run, text.fingerprint)
    if run.protected:
        _train_protected(run, view, text, newest, watch, Planning(make, mover), faults, meeting)
        return
    if faults.entries:
        raise RunError("faults: nothing survives them here; leave them out, or leave --unprotected out")

    def work(process: Process) -> None:
        _train_unprotected(run, view, text, newest, process)

    def receive(_: int, content: bytes) -> None:
        watch(msgspec.json.decode(content, type=Event))

    if meeting is None:
        launch(len(view.servers) * run.ranks, work, receive)
    else:
        join(meeting.start, work, receive, meeting.say)


def _require_fit(run: Run, servers: int, count: int, faults: Faults) -> None:
    if count != servers * run.ranks:
        each = "a process each" if run.ranks == 1 else f"{run.ranks} processes each"
        raise RunError(
            f"WORLD_SIZE is {count}, and the plan has {servers} live servers, {each}: "
            f"start torchrun with {servers * run.ranks} processes in all"
        )
    if faults.entries:
        raise RunError("faults: they are for a run on one machine, started by one command; leave them out")


def _train_protected(
    run: Run,
    view: View,
    text: TokenText,
    newest: int | None,
    watch: Watch,
    planning: Planning,
    faults: Faults,
    meeting: Rendezvous | None,
) -> None:
    planning = with_catalogue(planning, run)
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
    sparing = endpoint.sparing(partial(set_title, "relay"))
    return run_agent(member, work, endpoint.connect_alone, endpoint.token, run.durations, began, door.rank, sparing)


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


def _train_unprotected(run: Run, view: View, text: TokenText, newest: int | None, process: Process) -> None:
    place, number = divmod(process.rank, run.ranks)
    server, rank = view.servers[place], ServerRank(number, run.ranks)
    device = prepare_device(run, server, rank)
    reporter: Reporter = SilentReporter()
    if rank.is_first:
        failed = tuple(run.plan.dead) if process.rank == 0 else ()
        reporter = FileReporter(run.events, str(server), f"{run.plan.job.name}, trained", process.report, failed)
    store = process.store()
    trained = GptServer(run, server, text, reporter, keep=False, rank=rank, device=device)
    training = trained.training
    if newest is not None:
        trained.checkpoints.load(newest)
    options = NetworkOptions(transport=run.transport)
    own = OwnRanks(process.store, Participant(view.member(server), rank), options)
    network = connect(store, view, server, options, rank, line=lambda _: FreeLine(own.start))
    training.enter(network, training.newest)
    trained.connect(run.plan, network, (), None)
    if process.rank == 0:
        reporter.tell(first_view(run.plan, view.epoch, training.newest))
    try:
        trained.between(training.newest, save=False, settle=False)
        for step in range(training.newest, run.iterations):
            trained.iterate(step)
            trained.between(step + 1, save=False, settle=False)
    except NotFinite as error:
        raise RunFailed(
            f"iteration {training.newest}: {error}; start a new run with a smaller learning_rate, or with clip"
        ) from error
    network.barrier()
