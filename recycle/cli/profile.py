"""``recycle profile``."""

from pathlib import Path
from typing import Literal

import click

from recycle.cli.console import make_console
from recycle.cli.options import JobCommand, describe_job, device_option, job_options
from recycle.cli.parameters import Count, InputPath, OutputFile
from recycle.cli.run.model import load_model, quiet, read_model
from recycle.cli.surroundings import interrupted_at_once
from recycle.errors import UserError
from recycle.files import write_whole
from recycle.job import Job
from recycle.jobfile import encode_job
from recycle.plan.instruction import Op
from recycle.plan.memory import memory_changes

FILE = InputPath()


@click.command("profile", cls=JobCommand)
@job_options
@click.option("--model", "model_file", type=FILE, help="A TOML file with the size of the GPT.")
@click.option("--repeats", type=Count(1), default=10, show_default=True, help="How often each measurement is repeated.")
@device_option
@click.option("-o", "--output", type=OutputFile(".toml"), required=True, help="Where to write the job file.")
def command(job: Job, model_file: Path | None, repeats: int, device: Literal["cpu", "cuda"], output: Path) -> None:
    """Measure what every stage of a GPT costs and holds on this machine, for the shape of JOB.

    The job file that is written holds times in microseconds and memory in bytes; recycle plan takes it.

    \b
    recycle profile -D 3 -P 4 -M 6 -o profiled.toml
    recycle plan profiled.toml --dead W1_2 -o plan.json
    """
    quiet()
    job.require_even("a profile")
    keys = read_model(model_file)
    if keys.tensor_parallel > 1:
        raise UserError(
            f"tensor_parallel is {keys.tensor_parallel}: a profile is of servers of one rank; leave it out of the "
            "model file"
        )
    keys.require_cut(len(job.stages))
    make_console(error=True).print(f"{job.name}: measuring its stages; loading PyTorch and Megatron")
    with interrupted_at_once():
        from recycle.megatron.gpt.forward import load_text
        from recycle.megatron.gpt.profile import profile

    options = load_model(keys)
    measured = profile(job, options, load_text(None, options), repeats, device)
    write_whole(output, encode_job(measured))
    console = make_console()
    console.print(describe_job(measured))
    console.print(table(measured))
    if measured.latency:
        console.print(f"a transfer between stages takes {measured.latency[0] / 1000:.2f} ms")
    console.print(f"written to {output}")


def table(job: Job) -> str:
    """A row per stage (or chunk) of a job in microseconds and bytes."""
    chunk = "stage" if job.standard else "chunk"
    rows: list[tuple[str, ...]] = [(chunk, "F", "I", "W", "optimizer", "reduction", "held", "after I", "state")]
    for number, stage in enumerate(job.stages):
        times = (stage.forward, stage.input_gradient, stage.weight_gradient, stage.optimizer, stage.reduction)
        memory = (stage.held, memory_changes(stage)[Op.W].freed, stage.state)
        cells = [f"{time / 1000:.2f} ms" for time in times] + [f"{each / 1e6:.2f} MB" for each in memory]
        rows.append((str(number), *cells))
    return "\n".join(" ".join(cell.rjust(10) for cell in row) for row in rows)
