"""``recycle join``."""

import sys
from pathlib import Path

import click

from recycle.cli.model import quiet
from recycle.cli.options import parse_server
from recycle.job import Server


@click.command("join")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--server", type=parse_server, help="Whose place to take: W1_2. The first dead server's by default.")
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="Of this machine, where the other servers of the run reach it; it binds to it.",
)
def command(folder: Path, server: Server | None, address: str) -> None:
    """Bring a server back into the run in the folder RUN, which is going on.

    The new process copies its stage's state from a live server while the others train, and is let in between two
    iterations. It needs to read the folder: the plan, the settings, and join.json, which lets it in.

    \b
    recycle join run --server W1_2
    """
    quiet()
    from recycle.megatron.gpt.run import Run
    from recycle.megatron.gpt.training import join_run
    from recycle.planner.source import plan_maker

    run = Run.read(folder)
    sys.exit(join_run(run, server, plan_maker(run.plan.job, run.plan.mode), address))
