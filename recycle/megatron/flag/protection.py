"""What lets a run of torchrun outlive its ranks: each rank's work is done in a process below the one torchrun knows.

That process is the agent of the work: it says when the work has died, and itself ends with the run. So torchrun, which
ends everything when one of its processes fails, sees no failure as long as the others can go on.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from recycle.control.agent import STOPPED, run_agent
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.errors import StoreLost
from recycle.control.joinfile import new_token
from recycle.control.view import Member
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.command_line import read_command_line
from recycle.megatron.flag.flags import REFUSED, Flags
from recycle.megatron.flag.ranks import servers_of, unprotected
from recycle.runtime.launch.outcome import was_kept
from recycle.runtime.launch.torchrun import VARIABLES
from recycle.runtime.net.endpoint import Endpoint

BEAT, SILENCE = 0.5, 15.0
"""Seconds between two signs of life, and without any after which a server is dead though its agent does not say so."""


class Protection(NamedTuple):
    """What a server needs to outlive others.

    Attributes:
        servers: all, by their rank.
        endpoint: where the run's store is.
    """

    servers: tuple[Server, ...]
    endpoint: Endpoint

    def serve(self, rank: int, work: Callable[[], None]) -> int:
        """Do a rank's work under an agent, and end with the run.

        Args:
            rank: which.
            work: what is done.

        Returns:
            The exit status: 0 if the run was kept, with this rank or without it.
        """
        told_to_end: list[int] = []
        inherited = signal.signal(signal.SIGTERM, lambda number, _: told_to_end.append(number))

        def worker() -> int:
            # torchrun tells the whole process group to end, and Megatron may have something to do then.
            signal.signal(signal.SIGTERM, inherited)
            return _finished(work)

        durations = Durations(beat=BEAT, silence=SILENCE)
        endpoint = self.endpoint
        status = run_agent(Member(self.servers[rank], 0), worker, endpoint.connect, endpoint.token, durations)
        try:
            board = Board(endpoint.connect(), endpoint.token)
            while status not in (0, STOPPED) and not told_to_end and (kept := was_kept(board)) is not False:
                if kept:
                    return 0
                time.sleep(BEAT)
        except StoreLost:
            pass
        return status if status >= 0 else 128 - status


def find_protection(flags: Flags, words: Sequence[str], environment: Mapping[str, str]) -> Protection | str:
    """What this rank of a job needs to outlive others; a reason if nothing lets it.

    Args:
        flags: recycle's.
        words: the script's arguments.
        environment: torchrun's.
    """
    started = all(name in environment for name in VARIABLES)
    if not started or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return "the store must be in a process of torchrun's, not in a rank's"
    try:
        line = read_command_line(words, int(environment["WORLD_SIZE"]))
    except UserError as error:
        return str(error)
    problem = unprotected(line.shape, line.ranks[0], flags.dead)
    if problem:
        return problem
    return Protection(servers_of(line.shape, line.pipelines_last), _endpoint(environment))


def _endpoint(environment: Mapping[str, str]) -> Endpoint:
    """A corner of torchrun's store, in which the first rank has left the token."""
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    prefix = f"recycle/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/members"
    endpoint = Endpoint(host, port, "", _own_address(host, port), prefix)
    store = endpoint.connect().torch_store
    if environment["RANK"] == "0":
        store.set("token", new_token())
    return endpoint._replace(token=store.get("token").decode())


def _own_address(host: str, port: int) -> str:
    """The address of this machine from which it reaches another one."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        # Nothing is sent.
        probe.connect(address)
        return str(probe.getsockname()[0])


def _finished(work: Callable[[], None]) -> int:
    """Do something, and give the exit status that Python would give; what was printed is on its way then."""
    try:
        work()
        return 0
    except UserError as error:
        sys.stderr.write(f"recycle: {error}\n")
        return REFUSED
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
