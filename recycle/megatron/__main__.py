"""Run a Megatron training script: ``torchrun ... -m recycle.megatron pretrain_gpt.py --pipeline-schedule recycle``.

Without recycle's flags the script runs as if it had been started by itself.
"""

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recycle.control.membership.open_files import allow_most
from recycle.errors import UserError
from recycle.megatron.flag.command.command_line import require_command_line
from recycle.megatron.flag.command.flags import find_flags
from recycle.megatron.flag.command.megatron_options import LEFT_OUT, leave_out
from recycle.megatron.flag.command.on_cpu import ON_CPU, require_without_cuda, settings_for_cpu
from recycle.megatron.flag.device.data_helpers import require_data_helpers, use_data_helpers
from recycle.megatron.shared.missing import stand_in_for_python
from recycle.megatron.shared.release import RELEASES, find_release, require_listed
from recycle.runtime.net.gloo.threads import let_go
from recycle.saying import say

SHARDS = "--use-distributed-optimizer"
HALF, WIDE_SUMS = "--fp16", "--accumulate-allreduce-grads-in-fp32"

if TYPE_CHECKING:
    from recycle.megatron.flag.start.protection import Protection


def main(arguments: list[str]) -> int:
    """Run a script with its arguments, under the name of the main program.

    Args:
        arguments: ``--on-cpu`` if the script is to be told what training without CUDA needs; the script; its arguments.

    Returns:
        The exit status.

    Raises:
        UserError: what was asked for cannot be done.
    """
    on_cpu = arguments[:1] == [ON_CPU]
    arguments = arguments[1:] if on_cpu else arguments
    if not arguments or not Path(arguments[0]).is_file():
        given = f"{arguments[0]} is no file" if arguments else "no script is given"
        raise UserError(f"{given}: write python -m recycle.megatron pretrain_gpt.py, and the script's arguments")
    script, *rest = arguments
    if on_cpu:
        added = settings_for_cpu(rest)
        say_once(f"{ON_CPU} sets {' '.join(added) or 'nothing: all of it is given'}")
        rest += added
    flags, others = find_flags(rest)
    if not flags.on:
        run_script(script, others)
        return 0
    require_command_line(rest)
    release = find_release(Path(script))
    if release is not None:
        require_listed(release)
    rest, left_out = leave_out(rest)
    words, _ = leave_out(others)
    # Torch warns whenever a wait for an alarm is over, which happens twice a second; it reads this when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from recycle.megatron.flag.command.exit_signal import exit_signal
    from recycle.megatron.flag.start.protection import find_protection

    asks = exit_signal(rest)
    allow_most()
    protection = find_protection(flags, rest, os.environ)
    if isinstance(protection, str):
        say_once(f"the death of a server ends this run, which follows Megatron's own schedule: {protection}")
        run_script(script, others)
        return 0
    protection.gather()
    for warning in protection.risks(shards=SHARDS in words):
        say_once(warning)
    if protection.hosted is not None:
        os.environ.update(protection.hosted.variables())
    for option in left_out:
        say_once(f"{option} is left out: {LEFT_OUT[option]}")
    rank = int(os.environ["RANK"])
    if rank == 0 and HALF in words and WIDE_SUMS not in words:
        say_once(
            f"{HALF}: after a death peers sum more micro-batches in two bytes, and may skip a step for an overflow "
            f"that there would not have been; {WIDE_SUMS} prevents that"
        )
    status = protection.serve(rank, lambda given: run_script(script, words, given), asks)
    # Nothing is left to be done here, and what Python takes apart at its end keeps a busy host waiting for seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_script(script: str, arguments: list[str], protection: "Protection | None" = None) -> None:
    """Run the script in this process.

    Args:
        script: its file.
        arguments: its.
        protection: what this rank needs to outlive others, and to follow plans; None to run it as it is.

    Raises:
        UserError: what was asked for cannot be done.
    """
    # Megatron may lie beside the script and nowhere else.
    sys.path[0] = str(Path(script).resolve().parent)
    release = RELEASES.get(find_release(Path(script)) or "")
    done = "" if release is None else stand_in_for_python(release.python)
    if done:
        say_once(done)
    if protection is None:
        from recycle.runtime.launch.meet.start import variables_of_task

        os.environ.update(variables_of_task(os.environ))
    import torch

    if not torch.cuda.is_available():
        if protection is not None:
            require_without_cuda(arguments)
            require_data_helpers(Path(script))
        from recycle.megatron.flag.device.cpu_training import train_on_cpu

        for line in train_on_cpu():
            say_once(f"no CUDA here: {line}")
    else:
        if taken := use_data_helpers(Path(script)):
            say_once(taken)
        if protection is not None:
            from recycle.megatron.flag.device.accelerator import tell_which_gpu
            from recycle.megatron.flag.device.torch_optimizers import load_where_torch_steps

            tell_which_gpu()
            load_where_torch_steps()
    leave: Callable[[], None] = lambda: None  # noqa: E731
    if protection is not None:
        from recycle.megatron.flag.start.dropin import switch_on
        from recycle.planner.source import megatron_plan

        leave = switch_on(megatron_plan, protection)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    leave()
    let_go()


def say_once(text: str) -> None:
    """Tell the user something, once for all ranks."""
    if os.environ.get("RANK", "0") == "0":
        say(text)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        say(str(error))
        sys.exit(error.exit_status)
