"""The command line: one module per verb, imported only when that verb is called."""

import atexit
import gc
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

import click

from recycle.cli.console import plain
from recycle.cli.surroundings import give_up_unwritten, settled
from recycle.errors import UserError
from recycle.version import __version__

VERBS = {
    "plan": "Plan a job around its dead servers, and prove how good the plan is.",
    "check": "Prove that a plan is legal, and recompute its figures.",
    "show": "Draw a plan or a measured run: terminal, SVG, HTML, trace.",
    "explain": "Explain what bounds a plan, what its failures cost, and what would help.",
    "diff": "Compare two plans.",
    "export": "Write a plan as CSV, or as a torch.distributed.pipelining schedule.",
    "lower": "Add transfers, reductions and optimizer steps to a compute plan.",
    "catalogue": "Plan every vector of failure counts ahead of time.",
    "train": "Train a GPT on text by a plan, through failures of servers.",
    "watch": "Watch a run while it goes on, or try failures on a plan, in a browser.",
    "join": "Bring a server back into a running training.",
    "losses": "Draw the loss curve of a run over that of another, and report the largest difference.",
    "profile": "Measure what the stages of a GPT cost on this machine, and write a job file.",
    "doctor": "Check what works with a Megatron job's command line, and what a failure would cost.",
    "study": "Compare what is left of a job's training over a trace of failures, with each way of surviving.",
    "lookup": "Take the plan for some dead servers from a catalogue.",
}

EXTRAS = {
    "ortools": "plan",
    "torch": "train",
    "megatron": "train",
    "numpy": "train",
    "tensorboard": "train",
    "setproctitle": "train",
    "matplotlib": "figures",
}
"""The extra of the package that brings a module."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


class Verbs(click.Group):
    """A group whose commands are imported when they are called, so that ``--help`` costs next to nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: D102 - click's contract
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: D102 - click's contract
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"recycle.cli.{cmd_name}").command
        return command

    def resolve_command(  # noqa: D102 - click's contract
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(VERBS)}"
            raise click.UsageError(f"there is no verb {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: D102 - click's contract
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="recycle")
@click.pass_context
def group(context: click.Context) -> None:
    """Fault-tolerant pipeline-parallel training.

    ReCycle re-routes the micro-batches of a dead server to the peers that hold the same stage, and orders the work so
    that the extra micro-batches fit into the bubbles of the schedule.

    \b
    Plan a job of 3 pipelines, 4 stages, 6 micro-batches with server W1_2 (pipeline 1, stage 2) dead:
        recycle plan --pipelines 3 --stages 4 --micro-batches 6 --optimizer-cost 3 --dead W1_2 -o plan.json
        recycle check plan.json
        recycle show plan.json

    Exit status: 0 done; 1 the plan is illegal, the plans differ, or a run failed; 2 the input cannot be used.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line; what goes wrong is one line, and the exit status says of which kind it is."""
    # At its end Python looks for garbage in all that torch and Megatron are made of: a second of the processor in every
    # process of a host. What is frozen is not looked at.
    atexit.register(gc.freeze)
    try:
        with settled():
            sys.exit(group(prog_name="recycle", standalone_mode=False))
    except UserError as error:
        message, status = str(error), error.exit_status
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else "recycle"
        message, status = f"{error.format_message()} ({verb} --help says more)", UserError.exit_status
    except click.ClickException as error:
        message, status = error.format_message(), UserError.exit_status
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        message = f"{module} is not installed: pip install 'recycle-pipeline[{EXTRAS[module]}]' brings it"
        status = UserError.exit_status
    except (click.Abort, KeyboardInterrupt):
        message, status = "interrupted", INTERRUPTED
    if sys.stderr is not None:
        with suppress(OSError):
            click.echo(f"recycle: {plain(message)}", err=True)
        give_up_unwritten(sys.stderr)
    sys.exit(status)
