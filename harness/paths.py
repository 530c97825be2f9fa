"""Where this checkout is, for what is started in another folder."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """The PYTHONPATH with which what is started in another folder finds what is found here."""
    inherited = [str(Path(each).resolve()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return os.pathsep.join([str(ROOT), *inherited])
