"""What lets a run of torchrun outlive its ranks: each rank's work is done in a process below the one torchrun knows.

That process is the agent of the work: it says when the work has died, and itself ends with the run. So torchrun, which
ends everything when one of its processes fails, sees no failure as long as the others can go on.
"""

import atexit
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recycle.control.board import run_folder
from recycle.control.host.agent import CUT_SHORT, STOPPED, run_agent
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.view import Member, ServerRank
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.command.command_line import read_arguments
from recycle.megatron.flag.command.exit_signal import taken
from recycle.megatron.flag.command.flags import RECORD, REFUSED, STORE, TOKEN, TRUST, Flags
from recycle.megatron.flag.command.server_ranks import lost_stages, servers_of, spread_over_hosts, unprotected
from recycle.megatron.flag.start.keeper_part import KeeperPart, find_last_start, require_token
from recycle.megatron.flag.start.same_command import require_same_in_run
from recycle.plan.catalogue import Catalogue
from recycle.runtime.errors import RunError, lost_before_view
from recycle.runtime.launch.meet.claiming import LeftEarly, claimed, part
from recycle.runtime.launch.meet.hosted import PATIENCE, HostedStore
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.restart_loop import RestartLoop, serve_again
from recycle.runtime.launch.meet.secret import TOKEN_FILE, given_secret, secret_of_host
from recycle.runtime.launch.meet.start import Start, choose_address, find_start, refuse_elastic, words_of_parent
from recycle.runtime.launch.process.outcome import before_run, end_with_run
from recycle.runtime.launch.process.restarts import Restarts
from recycle.runtime.launch.process.signals import TAKEN, EndSignals, tell_to_leave
from recycle.runtime.launch.process.title import set_title
from recycle.runtime.launch.supervise.risks import risks
from recycle.runtime.net.endpoint import Endpoint
from recycle.saying import say
from recycle.threads import NoneLeft, named_shortage

DURATIONS = Durations(rebuild=15.0)
"""Where Megatron's threads fill a machine, groups take longer to build than in runs of the project's own trainer."""

INTERFACES = "GLOO_SOCKET_IFNAME"
"""Of the environment: what torch's process groups bind to."""

NOBODY = "", 0
"""Who listens to what servers tell."""


class Protection(NamedTuple):
    """What a server needs to outlive others.

    Attributes:
        servers: all, in the order of their ranks.
        endpoint: where the run's store is.
        flags: recycle's.
        hosted: the store at the first rank, where torchrun has none.
        meeting: with the other ranks; None where a rank meets nobody.
        keys: there, and the part in the folder of recordings; they are given up when this is closed.
        life: how often this rank was started again.
        ranks: how many each server has; those of one follow each other.
        keeping: this process's part in its host's keeper; None where nothing is kept.
        remedy: how the job is started so that it outlives any of its hosts.
        catalogue: the same plans made ahead of time in all ranks, and in all their lives; None if there are none.
    """

    servers: tuple[Server, ...]
    endpoint: Endpoint
    flags: Flags
    hosted: HostedStore | None = None
    meeting: Rendezvous | None = None
    keys: AbstractContextManager[object] = nullcontext()
    life: int = 0
    ranks: int = 1
    keeping: KeeperPart | None = None
    remedy: str = ""
    catalogue: Catalogue | None = None

    @property
    def by_rank(self) -> list[Server]:
        """Which server each rank belongs to."""
        return [server for server in self.servers for _ in range(self.ranks)]

    @property
    def resumes(self) -> bool:
        """Whether training goes on from what an earlier start has left in memory, with this life among the first."""
        return self.flags.resume and self.life == 0

    def place(self, rank: int) -> tuple[Server, ServerRank]:
        """Which server a rank belongs to, and which of its ranks it is."""
        place, number = divmod(rank, self.ranks)
        return self.servers[place], ServerRank(number, self.ranks)

    def gather(self) -> None:
        """Wait for all ranks, and compare what they are; a rank that comes back compares itself with those that go on.

        Raises:
            UserError: they cannot train together, or one has not come. All who came are told.
        """
        meeting = self.meeting
        if meeting is None:
            return
        with before_run(), ExitStack() as failed:
            failed.push(self.keys)
            if meeting.start.rank == 0 and not meeting.is_over():
                meeting.receive()
                if self.keeping is not None:
                    self.keeping.direct(self.servers, self.ranks, self.endpoint)
                meeting.admit(self.endpoint.token, NOBODY)
            else:
                meeting.attend()
            if self.keeping is not None:
                server, _ = self.place(meeting.start.rank)
                self.keeping.serve(server, self.endpoint)
            failed.pop_all()

    def risks(self, shards: bool) -> list[str]:
        """What the loss of one host would end, or hold up, as the first process knows once all have come.

        Args:
            shards: whether peers hold shards of the optimizer's state, each with two of them.
        """
        if self.meeting is None:
            return []
        directory = None if self.keeping is None else self.keeping.directory
        kept = directory is not None and directory.survived > 0
        found = risks(
            self.meeting.hosts,
            [(server.stage,) for server in self.by_rank],
            self.ranks,
            etcd=self.meeting.cluster is not None,
            kept=kept,
            order=self.remedy,
            store=STORE,
        )
        on_hosts: dict[str, set[Server]] = defaultdict(set)
        # Processes other than the first one know no hosts.
        for host, server in zip(self.meeting.hosts, self.by_rank, strict=False):
            on_hosts[host].add(server)
        if shards and not kept and on_hosts and (torn := lost_stages(self.servers, [*on_hosts.values()])[1]):
            stages = f"stage{'s' * (len(torn) > 1)} {', '.join(map(str, torn))}"
            found.append(
                f"both servers that hold a shard of the optimizer's state of {stages} are on one host, whose loss ends "
                f"the run: {self.remedy}"
            )
        return found

    def serve(self, rank: int, work: Callable[["Protection"], None], asks: int = signal.SIGTERM) -> int:
        """Do a rank's work under an agent, again after a crash, and end with the run.

        Args:
            rank: which.
            work: what is done, with the protection that it has in this life.
            asks: the signal that the work takes for the end of the run.

        Returns:
            The exit status: 0 if the run was kept, with this rank or without it; 128 more than the number of a signal
            where that told this process to end.
        """
        workers: list[int] = []
        # Signals that came after a worker was forked and before its process was known.
        unheard: list[int] = []
        refused: list[int] = []
        inherited = {number: signal.getsignal(number) for number in (*TAKEN, asks)}
        endpoint, (server, place) = self.endpoint, self.place(rank)
        set_title(f"agent of {place.of(server)}")

        def live(member: Member) -> int:
            def worker() -> int:
                # Until it trains, a signal ends it, or tells Megatron to if that has asked for it.
                for number, handler in inherited.items():
                    signal.signal(number, handler)
                set_title(place.of(server))
                return _finished(partial(work, self._replace(life=member.incarnation)), member.incarnation)

            connect, token = endpoint.connect_alone, endpoint.token
            access = endpoint.host_access(partial(set_title, "relay"))
            while asks in unheard and not signals.number:
                # It would end a worker in which Megatron does not listen yet.
                unheard.remove(asks)
            status = run_agent(member, worker, connect, token, DURATIONS, begin, place, access)
            workers.clear()
            if status == REFUSED:
                refused.append(status)
            return status

        def begin(worker: int) -> None:
            workers.append(worker)
            while unheard:
                tell_to_leave(worker, unheard.pop())

        def pass_on(number: int) -> bool:
            if not workers:
                unheard.append(number)
            for worker in workers:
                tell_to_leave(worker, number)
            return True

        def end() -> bool:
            return pass_on(asks if signals.number == asks else signal.SIGTERM)

        with EndSignals(end) as signals, taken(asks, lambda: pass_on(asks)):

            def told_to_end() -> bool:
                return bool(signals.number)

            def has_no_next_life() -> bool:
                # What was refused would be refused again. This process still waits for the end of the run.
                return told_to_end() or bool(refused)

            stay = (lambda: None) if self.meeting is None else self.meeting.stay
            lives = RestartLoop(endpoint, self.ranks, DURATIONS.beat, has_no_next_life, stay)
            with before_run():
                is_late = self.meeting is not None and self.meeting.is_late
                first = lives.first(server, place, DURATIONS.missed, say, is_late=is_late)
            counts = Restarts(self.flags.restarts, "bring it back with the job's start command")
            status = CUT_SHORT if told_to_end() else serve_again(live, first, lives, counts, say)
            status = end_with_run(endpoint, status, DURATIONS.beat, told_to_end)
            # Torchrun ends this process as soon as another one has failed: first it says what is left.
            if self.keeping is not None:
                self.keeping.dismiss(endpoint)
        if signals.number and status:
            status = 128 + signals.number
        with suppress(LeftEarly), self.keys:
            if self.meeting is not None:
                part(self.meeting, status, endpoint, self.by_rank)
        return status


def find_protection(flags: Flags, words: Sequence[str], environment: Mapping[str, str]) -> Protection | str:
    """What this rank of a job needs to outlive others; a reason if nothing lets it.

    Args:
        flags: recycle's.
        words: the script's arguments.
        environment: torchrun's, srun's, or set by hand.

    Raises:
        UserError: the store cannot be used, or this rank has other options than the first one.
    """
    start = find_start(environment)
    if start is None:
        return "this process was started alone"
    try:
        line = read_arguments(words, start.count)
    except UserError as error:
        return str(error)
    if problem := unprotected(line.shape):
        return problem
    refuse_elastic(words_of_parent())
    secret = _secret(flags, start, environment)
    remedy = f"give all the same file with {TOKEN} or {TOKEN_FILE}"
    with ExitStack() as keys:
        etcd = None if flags.store is None else EtcdCluster.parse(flags.store)
        cluster = keys.enter_context(claimed(etcd, start, "", DURATIONS.silence, PATIENCE, say, returns=True))
        meeting = Rendezvous(start, PATIENCE, cluster, say, secret, remedy)
        hosted: HostedStore | None = None
        with before_run(), meeting.telling_others():
            # The first process makes the store before it can fail in another way, so that the others hear of it.
            if start.rank == 0 and not start.served:
                hosted = HostedStore(start, say)
                meeting.has_store = True
            if start.rank == 0:
                # Before it speaks to a keeper: that of a run which is alive in the folder is none that was left.
                keys.enter_context(held(flags.record, begins=not meeting.is_over()))
            # Torch binds to the first of these interfaces as well.
            interface = environment.get(INTERFACES, "").partition(",")[0]
            meeting.address = choose_address(interface or None, start, f"{INTERFACES} one of this machine's interfaces")
            catalogue = flags.read_catalogue()
            # Before anything that only ranks do which outlive others: by their options some may not.
            require_same_in_run(meeting, words, catalogue)
            last = find_last_start(flags) if start.rank == 0 else None
            endpoint = meeting.endpoint(meeting.agree_on_token("" if last is None else last.nonce))
            require_token(last, endpoint.token)
            if start.rank > 0:
                keys.enter_context(held(flags.record, begins=False))
                hosted = None if start.served else HostedStore(start, say)
            redundancy = flags.keep_in_memory
            keeping = None if redundancy is None else KeeperPart(flags, redundancy, meeting, endpoint.token, words)
        servers, ranks = servers_of(line.shape, line.pipelines_last), line.server_ranks
        remedy = spread_over_hosts(line.shape, ranks, line.pipelines_last)
        return Protection(
            servers, endpoint, flags, hosted, meeting, keys.pop_all(), 0, ranks.size, keeping, remedy, catalogue
        )


def held(folder: Path | None, *, begins: bool) -> AbstractContextManager[None]:
    """Have the folder of a run's recordings, for as long as this process or one that it forks is there.

    It belongs to one run that is alive, as that of ``recycle train`` does.

    Args:
        folder: which; None where nothing is recorded.
        begins: whether this process begins the run. Any other one takes part, once it has begun.

    Raises:
        ControlError: another run is alive in it, or it cannot be written; when it is entered.
    """
    if folder is None:
        return nullcontext()
    return run_folder.taken(folder, RECORD) if begins else run_folder.shared(folder)


def _secret(flags: Flags, start: Start, environment: Mapping[str, str]) -> str:
    """What the user gives, or all processes of one host find there; empty if the user trusts all on their network."""
    secret = given_secret(flags.token_file, environment) or (secret_of_host() if start.is_on_one_host else "")
    if secret or flags.trust_network:
        return secret
    raise RunError(
        f"several hosts need a secret that no stranger has: give all the same file with {TOKEN} or {TOKEN_FILE}, as "
        f"openssl rand -hex 32 makes one, or say {TRUST} where nobody else is on their network"
    )


def _finished(work: Callable[[], None], life: int) -> int:
    """Do something, and give the exit status that Python would give; what Python does at its end is done then.

    That ends processes that the work has started, as Megatron's checkpoints do, and sends what was logged.

    Args:
        work: what is done. As long as it trains, it lives without a store.
        life: how often it was begun before.
    """
    try:
        with named_shortage():
            work()
        return 0
    except StoreLost as error:
        say(lost_before_view(life, error))
        return STOPPED
    except UserError as error:
        say(str(error))
        return REFUSED
    except NoneLeft as error:
        say(str(error))
        return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - the process of a worker ends without
        sys.stdout.flush()
        sys.stderr.flush()
