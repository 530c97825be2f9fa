"""``recycle train``."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from recycle.cli.console import make_console, progress_line
from recycle.cli.options import GroupedOption, JobCommand, job_options
from recycle.cli.parameters import (
    FAULTS,
    KEEPING,
    MOVING,
    SAVES,
    SERVERS,
    TIMEOUTS,
    Count,
    InputPath,
    OutputFolder,
    RandomFaults,
    Saves,
    Timeouts,
)
from recycle.cli.run.choices import Chosen, choose
from recycle.cli.run.model import quiet, read_model
from recycle.cli.run.shown_run import train_and_show
from recycle.cli.surroundings import interrupted_at_once
from recycle.control.board.joinfile import JOIN_FILE
from recycle.control.board.run_folder import require_free, taken
from recycle.control.membership.open_files import allow_most
from recycle.control.store.etcd_cluster import VARIABLE, EtcdCluster
from recycle.errors import RunFailed, UserError
from recycle.faults.menu import Kind
from recycle.files import require_writable, resolved
from recycle.holding import with_own_layout
from recycle.job import Job, Server
from recycle.placing.decision import Outlook
from recycle.record.recording import PLAN, SETTINGS
from recycle.runtime.checkpoint_folders import (
    CHECKPOINTS,
    candidates,
    checkpoints,
    refuse_to_overwrite,
    require_checkpoint,
    require_source,
    require_unfinished,
)
from recycle.runtime.launch.process.restarts import RESTARTS
from recycle.runtime.model_keys import ModelKeys
from recycle.runtime.text_file import require_text
from recycle.state.redundancy import Redundancy

if TYPE_CHECKING:
    from recycle.runtime.launch.meet.rendezvous import Rendezvous
    from recycle.runtime.launch.meet.start import Start

PLANS = "plans.zip"
FILES = (PLAN, SETTINGS, JOIN_FILE, PLANS)
"""In the run's folder: without these there is no run."""

SAVING: dict[str, Any] = {"cls": GroupedOption, "heading": "Checkpoints and evaluation"}
SURVIVING: dict[str, Any] = {"cls": GroupedOption, "heading": "When servers fail"}
HOSTS: dict[str, Any] = {"cls": GroupedOption, "heading": "On several hosts"}


@click.command("train", cls=JobCommand)
@job_options
@click.option("--plan", "plan_file", type=InputPath(), help="The plan to run; made on the fly if not given.")
@click.option("--dead", type=SERVERS, default="", help="Servers that are dead from the start, for example W1_2,W0_3.")
@click.option("--iterations", type=Count(1), default=20, show_default=True, help="How many iterations to train.")
@click.option(
    "--model",
    "model_file",
    type=InputPath(),
    help="A TOML file with the size of the GPT, and how it is trained.",
)
@click.option("--text", type=InputPath(), help="A file to train on.")
@click.option("-o", "--output", type=OutputFolder(), default="run", show_default=True, help="The run's folder.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "cuda+nccl"]),
    default="cpu",
    show_default=True,
    help="What stages are computed on; they can share a GPU. With cuda, tensors go through host memory; with "
    "cuda+nccl, NCCL carries them.",
)
@click.option(
    "--evaluate-every", type=Count(0), default=0, help="Iterations between evaluations on held-out text.", **SAVING
)
@click.option(
    "--checkpoint-every",
    "saving",
    type=SAVES,
    default="0",
    metavar="NUMBER[,keep=NUMBER]",
    help="Iterations between checkpoints, and how many are kept; default: 2.",
    **SAVING,
)
@click.option("--resume", is_flag=True, help="Continue from the newest checkpoint in the run's folder.", **SAVING)
@click.option(
    "--resume-from",
    type=InputPath(),
    help="Continue from a checkpoint, or the newest of another run, unless this run has its own.",
    **SAVING,
)
@click.option(
    "--catalogue",
    type=InputPath(),
    help="Plans for failures; by default they are made at the start and when servers fail.",
    **SURVIVING,
)
@click.option(
    "--restarts",
    type=Count(0),
    help="How often an hour a crashed server is started again; default: 3, or 0 if faults are given.",
    **SURVIVING,
)
@click.option(
    "--keep-in-memory",
    "redundancy",
    type=KEEPING,
    default="off",
    show_default=True,
    metavar="off|copies=N|parity=K+M",
    help="Have N hosts keep every iteration's state, or pieces of it, to lose one iteration with a whole stage.",
    **SURVIVING,
)
@click.option(
    "--timeouts",
    type=TIMEOUTS,
    default="",
    metavar="NAME=DURATION,...",
    help="silence=3s: until a silent host is dead. hang=15s: until a frozen process is dead. "
    "start=10m: how long hosts and servers wait for each other at the start.",
    **SURVIVING,
)
@click.option(
    "--move-layers",
    "outlook",
    type=MOVING,
    default="off",
    show_default=True,
    metavar="off|on|FAILURE/REPAIR",
    help="Move layers of the dead where that pays, by mean times to failure and repair.",
    **SURVIVING,
)
@click.option(
    "--faults",
    "asked_faults",
    type=FAULTS,
    metavar="PATH|mtbf=DURATION[,seed=INTEGER]",
    help="What goes wrong, on one machine: a fault file, a trace, or servers killed and replaced at random, one in "
    "this time on average.",
    **SURVIVING,
)
@click.option(
    "--address",
    help="The address or network interface to bind to; default: the one that reaches the first host.",
    **HOSTS,
)
@click.option(
    "--store",
    envvar=VARIABLE,
    metavar="URL",
    help="An etcd where servers agree on the live ones: etcd://[USER:PASSWORD@]HOST:PORT,...[/NAME], or etcds:// with "
    f"?ca=FILE&cert=FILE&key=FILE; or {VARIABLE} in the environment. Default: one of the run's own, on its first host.",
    **HOSTS,
)
@click.option(
    "--token-file",
    type=InputPath(),
    help="With the secret that all hosts share; RECYCLE_TOKEN_FILE in the environment names it as well, or "
    "RECYCLE_TOKEN is the secret. Default: one that is made in the run's folder.",
    **HOSTS,
)
def command(
    job: Job,
    plan_file: Path | None,
    dead: tuple[Server, ...],
    iterations: int,
    model_file: Path | None,
    text: Path | None,
    output: Path,
    resume: bool,
    resume_from: Path | None,
    saving: Saves,
    restarts: int | None,
    evaluate_every: int,
    asked_faults: Path | RandomFaults | None,
    catalogue: Path | None,
    timeouts: Timeouts,
    address: str | None,
    redundancy: Redundancy | None,
    store: str | None,
    token_file: Path | None,
    outlook: Outlook | None,
    device: Literal["cpu", "cuda", "cuda+nccl"],
) -> None:
    """Train a GPT on text by a plan for JOB, a process per live server on this machine.

    Kill any of these processes with kill -9: the others go on and lose at most the iteration in flight.
    recycle join brings a server back. Faults can also be given in a file, or come at random.

    On several hosts, start it on each with torchrun, srun, or by hand, with an output folder that all share
    (docs/reference/train.md).

    \b
    recycle train schedules/paper.toml --faults schedules/faults/two-kills-one-join.toml --iterations 60
    recycle train schedules/paper.toml --faults mtbf=30s,seed=1
    recycle train schedules/paper.toml --dead W1_2 --iterations 100 --evaluate-every 20
    """
    # Torch reads what it may log when it is first imported, and that is below.
    quiet()
    if outlook is not None:
        refuse_beside({"--keep-in-memory": redundancy, "--catalogue": catalogue})
        job = with_own_layout(job)
    if redundancy is not None:
        job.require_standard(f"--keep-in-memory {redundancy}")
    etcd = None if store is None else EtcdCluster.parse(store)
    from recycle.runtime.launch.meet.secret import given_secret
    from recycle.runtime.launch.meet.start import choose_address, find_start

    start = find_start(os.environ)
    files = partial(choose, job, dead, iterations, plan=plan_file, faults=asked_faults, catalogue=catalogue)

    def read() -> tuple[Chosen, ModelKeys]:
        job.require_size()
        for each in (output, output / CHECKPOINTS):
            require_writable(each, folder=True)
        for name in FILES:
            require_writable(output / name)
        keys = read_model(model_file)
        if keys.distributed_optimizer:
            job.require_even("distributed_optimizer")
        keys.require_cut(len(job.stages))
        if outlook is not None:
            refuse_beside(
                {"distributed_optimizer": keys.distributed_optimizer, "tensor_parallel": keys.tensor_parallel > 1}
            )
        if text is not None:
            require_text(text)
        if resume_from is not None:
            require_source(resume_from, output)
        elif not resume:
            refuse_to_overwrite(output)
        elif redundancy is None:
            require_checkpoint(output)
        if resume or resume_from is not None:
            sources = checkpoints(output / CHECKPOINTS)
            require_unfinished(sources or ([] if resume_from is None else candidates(resume_from)), iterations)
        with progress_line("planning"):
            chosen = files()
        if etcd is not None and any(fault.kind is Kind.STORE_LOSS for fault in chosen.faults.entries):
            raise UserError(
                "faults: store-loss ends the store of the run, and --store gives etcd: leave one of them out"
            )
        return chosen, keys

    read_before: tuple[Chosen, ModelKeys] | None = None
    if start is None:
        # Before torch is imported, which takes seconds.
        require_free(output)
        host = choose_address(address, None)
        if token_file is not None:
            # On one host no process needs it. The other hosts of the next start will.
            given_secret(token_file, {})
        read_before = read()
    with interrupted_at_once():
        from recycle.control.membership.durations import Durations
        from recycle.runtime.device import require_device
        from recycle.runtime.launch.meet.claiming import claimed

    kind: Literal["cpu", "cuda"] = "cpu" if device == "cpu" else "cuda"
    require_device(kind)
    allow_most()
    silence, hang, start_within = timeouts
    cluster = click.get_current_context().with_resource(
        claimed(etcd, start, str(resolved(output)), silence, start_within, say)
    )
    meeting = None if start is None else meet(start, start_within, cluster, output, token_file)
    if meeting is not None:
        with meeting.telling_others():
            meeting.address = host = choose_address(address, start)
            if meeting.start.rank == 0:
                require_free(output)
    if meeting is not None and meeting.start.rank > 0:
        attend(output, meeting, keeps=redundancy is not None, goes_on=resume or resume_from is not None)
        return
    with nullcontext() if meeting is None else meeting.telling_others():
        (plan, faults), keys = read_before or read()
        # What takes the seconds before training begins.
        plans = f"plans for failures are in {catalogue}" if catalogue else "making plans for failures"
        make_console(error=True).print(f"{plan.job.name}: {plans}; loading PyTorch and Megatron")
        with interrupted_at_once():
            from recycle.megatron.gpt.model import ModelOptions
            from recycle.megatron.gpt.run_settings import Run
            from recycle.planner.source import plan_ahead

        answer = max(30.0, 2 * silence, 2 * hang)
        durations = Durations(silence / 6, silence, hang, start_within, answer=answer, transfer=max(120.0, answer))
        click.get_current_context().with_resource(taken(output))
        if catalogue is None:
            catalogue = plan_ahead(plan.job, plan.mode, output / PLANS)
        run = Run(
            plan,
            ModelOptions(**msgspec.structs.asdict(keys)),
            iterations,
            output,
            resume,
            saving.every,
            evaluate_every,
            text,
            catalogue=catalogue,
            host=host,
            durations=durations,
            keep=saving.keep,
            resume_from=resume_from,
            restarts=(0 if faults.entries else RESTARTS) if restarts is None else restarts,
            cluster=cluster,
            redundancy=redundancy,
            device=kind,
            nccl=device == "cuda+nccl",
            outlook=outlook,
        )
        train_and_show(run, faults, meeting)


def refuse_beside(others: Mapping[str, object]) -> None:
    """Refuse --move-layers beside what it does not go with.

    Args:
        others: what that is, and what was given for it; false if nothing was.

    Raises:
        UserError: something is.
    """
    if refused := next((name for name, given in others.items() if given), ""):
        raise UserError(f"--move-layers: it does not go with {refused} yet; leave one of them out")


def meet(
    start: "Start", patience: float, cluster: EtcdCluster | None, folder: Path, token_file: Path | None
) -> "Rendezvous":
    """This process's part in the meeting of those that were started with it.

    They have a secret in common: the one that the user gives, or else one in the folder that they share.

    Args:
        start: how this process was started.
        patience: how long to wait for others, in seconds.
        cluster: where they agree; None for a store of the run's own.
        folder: of the run.
        token_file: with the user's secret; None where the environment has it, or the folder.

    Raises:
        RunError: they were started in a way in which the death of one ends others.
    """
    from recycle.runtime.launch.meet.rendezvous import Rendezvous
    from recycle.runtime.launch.meet.secret import TOKEN_FILE, given_secret, secret_in
    from recycle.runtime.launch.meet.start import refuse_elastic, words_of_parent

    refuse_elastic(words_of_parent())
    secret = given_secret(token_file, os.environ) or secret_in(folder)
    remedy = f"give all the same --output, or the same file in {TOKEN_FILE}"
    return Rendezvous(start, patience, cluster, say, secret, remedy)


def say(text: str) -> None:
    """Tell the user something, beside the progress of the run."""
    make_console(error=True).print(f"recycle: {text}")


def attend(folder: Path, meeting: "Rendezvous", *, keeps: bool, goes_on: bool) -> None:
    """Serve in a run that the first process begins.

    Args:
        folder: of the run.
        meeting: with the other processes.
        keeps: whether it keeps its state in memory.
        goes_on: whether it begins where another start has ended.

    Raises:
        RunFailed: it did not come to its end.
        UserError: there is no run.
    """
    from recycle.cli.run.planning import planning_of
    from recycle.megatron.gpt.arriving import attend_run

    status = attend_run(folder, planning_of, meeting, say, keeps=keeps, goes_on=goes_on)
    if status:
        raise RunFailed(
            f"process {meeting.start.rank} ended with {status}: see what the first process says; if its host is lost, "
            "go on with --resume"
        )
