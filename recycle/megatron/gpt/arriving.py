"""Serving in a run that another process has begun: started with it, or to join it."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from recycle.control.board.joinfile import JOIN_FILE, JoinFile, digest_of, last_token
from recycle.control.board.run_folder import shared
from recycle.control.membership.addresses import look_up
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.membership.messages import differs
from recycle.control.membership.participant import participants_of
from recycle.control.membership.view import Member, ServerRank, View
from recycle.errors import EndedBySignal, UserError
from recycle.faults.menu import Faults
from recycle.job import Server
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.memory_copies import keeper_setting
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.training import serve_member, with_catalogue
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.claiming import end_for_first
from recycle.runtime.launch.meet.keepers import KeeperSlot, dismiss_after, serve_from, settle
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.restart_loop import RestartLoop, serve_again
from recycle.runtime.launch.meet.start import address_towards
from recycle.runtime.launch.process.all_ranks import serve_all_ranks
from recycle.runtime.launch.process.outcome import before_run, end_with_run
from recycle.runtime.launch.process.report_channel import launcher_at
from recycle.runtime.launch.process.restarts import Restarts
from recycle.runtime.launch.process.signals import EndSignals, tell_to_leave
from recycle.runtime.launch.supervise.setting import RunAccess
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.recover.plans import Planning


def attend_run(
    folder: Path,
    make_planning: Callable[[Run], Planning],
    meeting: Rendezvous,
    say: Callable[[str], None],
    *,
    keeps: bool,
    goes_on: bool,
) -> int:
    """Serve in a run that another process begins, which was started with this one; to its end.

    Args:
        folder: of the run, as the first process sees it as well.
        make_planning: gives what plans when servers fail, for which no catalogue has a plan.
        meeting: with the other processes.
        say: tells the user something.
        keeps: whether it keeps its state in memory.
        goes_on: whether it begins where another start has ended.

    Returns:
        The exit status: 0 if the run was kept, with this server or without it.

    Raises:
        UserError: there is no run, or it cannot be found here.
        EndedBySignal: this process was told to end.
    """
    slot = None
    with before_run():
        if keeps:
            # Of a run that has begun, the keeper that is there is its own, and none that was left.
            slot = KeeperSlot(last_token(folder), meeting.address, resumes=goes_on or meeting.is_over())
            meeting.keeper = slot.offer
        admission = meeting.attend()
        endpoint = meeting.endpoint(_shared_token(folder, admission.digest, meeting.start.host))
        run = msgspec.structs.replace(Run.read(folder), host=meeting.address)
        text = load_text(run.text, run.model)
        planning = with_catalogue(make_planning(run), run)
        _require_same(run.fingerprint(text.fingerprint, planning.catalogue), endpoint)
    place, number = divmod(meeting.start.rank, run.ranks)
    server = View.of(run.plan).servers[place]
    access = RunAccess(endpoint, admission.watch, ServerRank(number, run.ranks))
    if meeting.is_late:
        raise RunError(f"the run goes on already: recycle join {folder} --server {server} brings {server} back to it")
    if slot is not None:
        serve_from(keeper_setting(run, slot), endpoint)
    # Not before it has come to the others: the first process has to find the folder free.
    with shared(folder):
        workers: list[int] = []
        with EndSignals(lambda: bool(workers) and tell_to_leave(workers[-1])) as signals:
            lives = RestartLoop(endpoint, run.ranks, run.durations.beat, lambda: bool(signals.number), meeting.stay)

            def serve(life: Member) -> int:
                return serve_member(run, text, planning, Faults(), life, access, workers.append)

            status = serve_again(serve, Member(server, 0), lives, Restarts(run.restarts), say)
            workers.clear()
            status = end_with_run(endpoint, status, run.durations.beat, lambda: bool(signals.number))
        if slot is not None:
            dismiss_after(endpoint)
        meeting.leave(status)
        everybody = participants_of(View.of(run.plan).members, run.ranks)
        end_for_first(meeting, endpoint, [each.member.server for each in everybody])
        if signals.number and status:
            raise EndedBySignal(f"{signals.name}: {server} has left the run", signals.number)
        return status


def join_run(run: Run, server: Server | None, planning: Planning, address: str | None = None) -> int:
    """Join a run that is going on, as a replacement of a dead server.

    Args:
        run: as its folder describes it.
        server: whose place to take; None for any.
        planning: what plans when servers fail, for which no catalogue has a plan.
        address: of this machine; None for the one from which it reaches the first host.

    Returns:
        The exit status: 0 if training came to its end.

    Raises:
        UserError: the run cannot be joined.
    """
    planning = with_catalogue(planning, run)
    path = run.folder / JOIN_FILE
    door = JoinFile.read(path)
    try:
        host = address or address_towards(look_up(door.host))
    except OSError as error:
        raise ControlError(f"{path}: the run is on {door.host}: {error.strerror}; give --address") from error
    text = load_text(run.text, run.model)
    endpoint = Endpoint(door.host, door.port, door.token, host, door.prefix, door.cluster)
    try:
        board = endpoint.board(3.0)
        description, verdict = board.description(), board.verdicts.last()
    except StoreLost as error:
        whose = "" if door.port or door.cluster else " of this user"
        raise ControlError(f"{path}: {error}; no run{whose} is going on here") from error
    if description is None:
        raise ControlError(f"{path}: the store there is of no run; take the folder of a run that is going on")
    if verdict is None:
        raise ControlError(f"{path}: the run has not begun, its servers are starting; join it once it trains")
    difference = differs(run.fingerprint(text.fingerprint, planning.catalogue), description.fingerprint)
    if difference:
        raise ControlError(f"{run.folder}: {difference}: a server that joins must train the same model in the same way")
    if server is not None:
        run.plan.job.require_servers([server])
    # Where all servers of a stage are dead, the view that has them is followed by one with those who join.
    alive = [each for each in verdict.view.members if board.failures.death(each) is None]
    living = {each.server for each in alive}
    vacant = [each for each in run.plan.job.servers() if each not in living]
    if not vacant or (server is not None and server not in vacant):
        raise ControlError(f"{server or 'any server'} cannot join: it is not dead; the view of the run has it")
    member = board.joining.come(vacant if server is None else [server])
    del board
    if run.redundancy is not None:
        try:
            settle(keeper_setting(run, KeeperSlot(door.token, host, resumes=True)), endpoint, member.server, alive)
        except UserError:
            endpoint.board().joining.withdraw(member)
            raise
    access = RunAccess(endpoint, launcher_at(door.host, door.watch, door.token))
    status = serve_all_ranks(
        run.ranks,
        lambda rank, began: serve_member(run, text, planning, Faults(), member, access._replace(rank=rank), began),
    )
    if run.redundancy is not None:
        dismiss_after(endpoint)
    return status


def _shared_token(folder: Path, digest: str, first: str) -> str:
    """The token of the run that the first process has begun, from the folder that all share.

    Args:
        folder: of the run.
        digest: of the token.
        first: the first process's host.

    Raises:
        RunError: it is another folder.
    """
    path = folder / JOIN_FILE
    token = JoinFile.read(path).token if path.exists() else ""
    if digest_of(token) != digest:
        raise RunError(
            f"{folder}: it is not the folder that the first process, on {first}, writes to; give --output a folder "
            "that all hosts share"
        )
    return token


def _require_same(fingerprint: dict[str, str], endpoint: Endpoint) -> None:
    """Compare what this process would train with what the run does.

    Args:
        fingerprint: what must be the same, by name.
        endpoint: of the run's store.

    Raises:
        RunError: they differ.
    """
    description = endpoint.board().description()
    assert description is not None, "who admits has described the run"
    difference = differs(fingerprint, description.fingerprint)
    if difference:
        raise RunError(f"{socket.gethostname()}: {difference}: all hosts must train the same model in the same way")
