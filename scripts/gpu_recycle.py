"""Commands of ``recycle`` that parts of ``scripts/gpu-check`` run as users do, with what can be imported here."""

import os
import subprocess
import sys
from pathlib import Path


def run_recycle(folder: Path, *words: str) -> str:
    """Run a command to its end.

    Args:
        folder: in which it is run.
        words: of the command.

    Returns:
        All that it printed.

    Raises:
        RuntimeError: it failed.
    """
    program = [sys.executable, "-W", "ignore", "-c", "from recycle.cli import main; main()", *words]
    done = subprocess.run(
        program,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"recycle {words[0]} ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout
