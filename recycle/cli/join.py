"""``recycle join``."""

from pathlib import Path

import click

from recycle.cli.console import make_console
from recycle.cli.options import Verb
from recycle.cli.parameters import SERVER, InputPath
from recycle.cli.run.model import quiet
from recycle.cli.surroundings import interrupted_at_once
from recycle.control.board.joinfile import JOIN_FILE
from recycle.control.board.run_folder import shared
from recycle.control.host.agent import FENCED, STOPPED
from recycle.control.membership.open_files import allow_most
from recycle.errors import RunFailed
from recycle.files import read_bytes
from recycle.job import Server
from recycle.record.recording import PLAN, SETTINGS

ENDS = {FENCED: "the others go on without it", STOPPED: "the run cannot go on"}
"""Why the worker of a server has ended, by its exit status."""

LATE = "the run has come to its end without this server, which was too late for it"


@click.command("join", cls=Verb)
@click.argument("folder", metavar="RUN", type=InputPath())
@click.option(
    "--server",
    type=SERVER,
    help="Which dead server to replace, for example W1_2; by default, the first one that no other process brings back.",
)
@click.option(
    "--address",
    help="The address or interface of this machine at which the run's other servers reach it; by default, the address "
    "from which it reaches the run's first host.",
)
def command(folder: Path, server: Server | None, address: str | None) -> None:
    """Bring a server back into the running training in the folder RUN.

    The new process copies its stage's state from a live server while the others train, and is let in between two
    iterations. It needs to read the folder: the plan, the settings, and join.json, which lets it in. Exits with status
    1 if the server leaves the run before its end, or the run ends before the server is in.

    \b
    recycle join run --server W1_2
    """
    quiet()
    allow_most()
    from recycle.runtime.launch.meet.start import choose_address

    if address is not None:
        address = choose_address(address, None)
    # Before torch is imported, which takes seconds.
    for name in (PLAN, SETTINGS, JOIN_FILE):
        read_bytes(folder / name)
    make_console(error=True).print(f"{folder}: loading PyTorch and Megatron")
    with interrupted_at_once():
        from recycle.cli.run.planning import planning_of
        from recycle.megatron.gpt.arriving import join_run
        from recycle.megatron.gpt.run_settings import Run

    run = Run.read(folder)
    with shared(folder):
        status = join_run(run, server, planning_of(run), address)
    if status and run.is_done:
        raise RunFailed(f"{folder}: {LATE}")
    if status:
        raise RunFailed(f"{folder}: this server left the run before its end ({ENDS.get(status, f'status {status}')})")
