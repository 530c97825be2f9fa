"""``recycle kill``."""

import os
import signal
import socket
from pathlib import Path

import click

from recycle.cli.console import make_console
from recycle.cli.options import Verb
from recycle.cli.parameters import SERVERS, InputPath
from recycle.errors import UserError
from recycle.job import Server
from recycle.record.processes import Processes
from recycle.record.reading import load_lines
from recycle.record.recording import ProcessLine
from recycle.runtime.launch.process.title import has_title


@click.command("kill", cls=Verb)
@click.argument("folder", metavar="RUN", type=InputPath())
@click.argument("servers", metavar="SERVER[,SERVER...]", type=SERVERS)
@click.option("--leave", is_flag=True, help="Ask them to leave between two iterations (SIGTERM): none is redone.")
def command(folder: Path, servers: tuple[Server, ...], leave: bool) -> None:
    """Kill the workers of some servers of the run in the folder RUN, on this machine, to see the run go on.

    The processes are found by what the run has recorded, so no other run is hit. A server that crashes is started again
    by its agent, where the run does that.

    \b
    recycle kill run W1_2
    recycle kill run W1_2,W0_0 --leave
    """
    if not servers:
        raise UserError("no server is named: write one, such as W1_2")
    servers = tuple(dict.fromkeys(servers))
    workers = [worker_of(folder, server) for server in servers]
    for server, pid in zip(servers, workers, strict=True):
        try:
            os.kill(pid, signal.SIGTERM if leave else signal.SIGKILL)
        except OSError as error:
            raise UserError(f"{server}: process {pid} cannot be killed: {error.strerror}") from error
        done = "is asked to leave" if leave else "is killed"
        make_console().print(f"{server} {done}: process {pid}")


def worker_of(folder: Path, server: Server) -> int:
    """The process of a run's server.

    Raises:
        UserError: there is no such run or server, or its process has ended or is on another host.
    """
    if not (folder / "events").is_dir():
        raise UserError(f"{folder}: there is no run here; give the folder of one")
    processes = Processes()
    for line in load_lines(folder, facts=True):
        if isinstance(line, ProcessLine):
            processes.add(line)
    found = processes.of(str(server))
    if found is None:
        raise UserError(f"{folder}: {server} is no server of this run, or has not begun yet")
    if found.host != socket.gethostname():
        raise UserError(f"{server} runs on {found.host}: kill it there")
    if not has_title(found.pid, str(server)):
        raise UserError(f"{server} is not running: its process {found.pid} has ended")
    return found.pid
