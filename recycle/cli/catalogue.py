"""``recycle catalogue``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from recycle.cli.console import make_console, progress_line
from recycle.cli.options import JobCommand, describe_job, job_options, mode_options, search_options
from recycle.cli.parameters import Count, OutputFile
from recycle.errors import UserError
from recycle.files import STANDARD
from recycle.job import Job
from recycle.plan.catalogue import Entry
from recycle.plan.mode import Mode
from recycle.processors import processors
from recycle.wording import plural

if TYPE_CHECKING:
    from recycle.planner.model.stopping import StoppingCriterion


@click.command("catalogue", cls=JobCommand)
@job_options
@mode_options
@click.option(
    "--failures",
    type=Count(0),
    default=1,
    show_default=True,
    help="The largest number of failures to plan for.",
)
@search_options
@click.option("-o", "--output", type=OutputFile(".zip"), required=True, help="Where to write the catalogue.")
def command(
    job: Job,
    mode: Mode,
    failures: int,
    stop: "StoppingCriterion",
    budget: str,
    seed: int,
    output: Path,
) -> None:
    """Plan every vector of failure counts of JOB ahead of time, into one file.

    Peers of a stage hold the same parameters, so one plan serves every set of dead servers with the same count per
    stage. All cores plan. Ctrl-C loses nothing: the same command continues where it was interrupted.

    \b
    recycle catalogue job.toml --failures 2 -o catalogue.zip
    recycle plan --catalogue catalogue.zip --dead W1_2,W0_3 -o plan.json
    """
    from recycle.planner.catalogue import make_catalogue
    from recycle.planner.make import Effort

    if output == STANDARD:
        raise UserError("-o -: plans are kept beside the catalogue while it is made; give it a name")
    try:
        with progress_line("planning", counted=True) as show:

            def watch(done: int, total: int, entry: Entry) -> None:
                period, bound = job.time_text(entry.period), job.time_text(entry.bound)
                show(f"{' '.join(map(str, entry.counts))} dead per stage: period {period}, bound {bound}", done, total)

            make_catalogue(output, job, mode, failures, Effort((stop,), budget, seed), "lowered", watch, processors())
    except KeyboardInterrupt:
        make_console(error=True).print(
            f"interrupted; the plans made so far are kept in {output}.part, and the same command continues"
        )
        raise SystemExit(130) from None
    make_console().print(f"{describe_job(job)}: plans for up to {plural(failures, 'failure')} written to {output}")
