"""``recycle lookup``."""

from pathlib import Path

import click

from recycle.cli.console import print_json, report_console
from recycle.cli.options import dead_option, describe_dead, describe_job, json_option
from recycle.cli.parameters import OutputFile
from recycle.job import Server
from recycle.jobfile import load_job
from recycle.plan.catalogue import Catalogue
from recycle.plan.document import save_plan


@click.command("lookup")
@click.argument("catalogue_file", metavar="CATALOGUE", type=click.Path(path_type=Path))
@dead_option
@click.option("--job", "job_file", type=click.Path(path_type=Path), help="Refuse a catalogue made for another job.")
@click.option("-o", "--output", type=OutputFile(".json"), help="Where to write the plan.")
@json_option
def command(
    catalogue_file: Path, dead: tuple[Server, ...], job_file: Path | None, output: Path | None, as_json: bool
) -> None:
    """Take the plan for some dead servers from CATALOGUE, in their names.

    Where a live server has to act as a dead peer, and where moving a healthy server to another stage would save time,
    the report says so.
    """
    catalogue = Catalogue(catalogue_file, load_job(job_file, {}) if job_file else None)
    found = catalogue.look_up(dead)
    if output is not None:
        save_plan(found.plan(), output)
    index, entry = catalogue.index, found.entry
    retention = index.baseline / entry.period if entry.period else 1.0
    if as_json:
        print_json(
            {
                "dead": [str(server) for server in found.dead],
                "counts": entry.counts,
                "period": entry.period,
                "bound": entry.bound,
                "makespan": entry.makespan,
                "retention": retention,
                "roles": {str(server): str(role) for server, role in found.reading.roles.items()},
                "migration": found.migration.describe(index.job) if found.migration else None,
            }
        )
        return
    console, job = report_console(output), index.job
    whole = next(each for each in index.entries if not any(each.counts))
    console.print(describe_job(job), markup=False)
    console.print(f"dead       {describe_dead(found.dead)}")
    console.print(f"period     {job.time_text(entry.period)}, bound {job.time_text(entry.bound)}")
    console.print(
        f"throughput {retention:.1%} of fault-free 1F1B (period {job.time_text(index.baseline)}), "
        f"{whole.period / max(entry.period, 1):.1%} of that with all servers alive "
        f"(period {job.time_text(whole.period)})"
    )
    for server, role in found.reading.roles.items():
        console.print(f"role       {server} acts as {role}")
    if found.migration:
        console.print(f"migration  {found.migration.describe(job)}")
    if output is not None:
        console.print(f"written to {output}", markup=False)
