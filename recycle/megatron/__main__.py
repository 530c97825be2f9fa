"""Run a Megatron training script: ``torchrun ... -m recycle.megatron pretrain_gpt.py --pipeline-schedule recycle``.

Without recycle's flags the script runs as if it had been started by itself.
"""

import os
import runpy
import sys
from pathlib import Path

from recycle.errors import UserError
from recycle.megatron.flags import REFUSED, find_flags


def main(arguments: list[str]) -> None:
    """Run a script with its arguments, under the name of the main program.

    Raises:
        UserError: what was asked for cannot be done.
    """
    if not arguments or not Path(arguments[0]).is_file():
        given = f"{arguments[0]} is no file" if arguments else "no script is given"
        raise UserError(f"{given}: write python -m recycle.megatron pretrain_gpt.py, and the script's arguments")
    script, *rest = arguments
    flags, others = find_flags(rest)
    # Megatron may lie beside the script and nowhere else.
    sys.path[0] = str(Path(script).resolve().parent)
    import torch

    if not torch.cuda.is_available():
        from recycle.megatron.cpu_training import train_on_cpu

        for line in train_on_cpu():
            if os.environ.get("RANK", "0") == "0":
                sys.stderr.write(f"recycle: no CUDA here: {line}\n")
    if flags.on:
        from recycle.megatron.dropin import switch_on

        switch_on()
        others = rest
    sys.argv = [script, *others]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.stderr.write(f"recycle: {error}\n")
        sys.exit(REFUSED)
