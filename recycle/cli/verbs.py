"""The verbs, and what their help says: one module each, imported only when that verb is called."""

from difflib import get_close_matches
from importlib import import_module

import click

from recycle.version import __version__

FIRST = {
    "plan": "Plan a job around its dead servers, and prove how good the plan is.",
    "show": "Draw a plan or a measured run, or its losses: terminal, SVG, HTML, trace, CSV.",
    "explain": "Explain what bounds a plan, what its failures cost, and what would help.",
    "train": "Train a GPT on text by a plan, through failures of servers.",
    "watch": "Watch a run while it goes on, or try failures on a plan, in a browser.",
    "doctor": "Check what works with a Megatron job's command line, and what a failure would cost.",
    "study": "Compare what is left of a job's training over a trace of failures, with each way of surviving.",
}
"""What one begins with."""

MORE = {
    "check": "Prove that a plan is legal, and recompute its figures, or compare it with another plan.",
    "catalogue": "Plan every vector of failure counts ahead of time.",
    "kill": "Kill servers of a run, to see it go on.",
    "join": "Bring a server back into a running training.",
}

VERBS = FIRST | MORE

PACKAGES = {
    "ortools": "ortools",
    "torch": "torch",
    "megatron": "megatron-core",
    "numpy": "numpy",
    "tensorboard": "tensorboard",
    "setproctitle": "setproctitle",
    "xxhash": "xxhash",
    "pyeclib": "pyeclib",
}
"""What is installed to have a module: by its own name, which works beside a checkout and beside a wheel."""


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
        for title, verbs in (("Verbs", FIRST), ("More", MORE)):
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


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
        recycle plan --pipelines 3 --stages 4 --micro-batches 6 --dead W1_2 -o plan.json
        recycle check plan.json
        recycle show plan.json

    Exit status: 0 done; 1 the plan is illegal, the plans differ, or a run failed; 2 the input cannot be used.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
