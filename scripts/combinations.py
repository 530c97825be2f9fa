#!/usr/bin/env python3
"""The combinations of Python, torch and Megatron that are tried: ``python -m scripts.combinations`` makes environments.

The table in docs/reference/megatron.md has them. What the long suite tries gets an environment of its own, in which
tests/test_combinations.py runs its tests. A Python that this machine lacks is left out.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "reference" / "megatron.md"
ROW = re.compile(r"^\| (?P<python>3\.\d+) \| (?P<torch>[\d.]+) \| (?P<megatron>[\d., ]+) \| (?P<tried>[^|]+) \|", re.M)
EXTRAS = "plan,train,test"


class Combination(NamedTuple):
    """What is tried together.

    Attributes:
        python: its version, of two numbers.
        torch: its release.
        megatron: the releases of megatron-core.
        tried: what is tried, in the table's words.
    """

    python: str
    torch: str
    megatron: tuple[str, ...]
    tried: str

    @property
    def folder(self) -> Path:
        """Its environment, if the long suite tries it."""
        return ROOT / f".venv-{self.python}-{self.torch}-{self.megatron[0]}"

    @property
    def is_long(self) -> bool:
        """Whether only the long suite tries it."""
        return self.tried.startswith("the long suite")

    def interpreter(self) -> str | None:
        """Its Python on this machine; None if there is none."""
        for name in (
            f"python{self.python}",
            *map(str, Path.home().glob(f".pyenv/versions/{self.python}.*/bin/python")),
        ):
            if found := shutil.which(name):
                asked = subprocess.run([found, "--version"], check=False, capture_output=True, text=True)
                if asked.stdout.startswith(f"Python {self.python}."):
                    return found
        return None


def combinations() -> list[Combination]:
    """Those of the table, from top to bottom."""
    rows = ROW.finditer(TABLE.read_text())
    return [
        Combination(each["python"], each["torch"], tuple(each["megatron"].split(", ")), each["tried"]) for each in rows
    ]


def make(wanted: Combination) -> None:
    """Make its environment, unless it is there or this machine lacks its Python."""
    done, python = wanted.folder / "installed", wanted.interpreter()
    if done.exists():
        return
    if python is None:
        print(f"Python {wanted.python} is not here: {wanted.folder.name} is left out", file=sys.stderr)
        return
    subprocess.run([python, "-m", "venv", wanted.folder], check=True)
    install = [str(wanted.folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*install, f"torch=={wanted.torch}", f"{ROOT}[{EXTRAS}]"], check=True)
    subprocess.run([*install, "--no-deps", f"megatron-core=={wanted.megatron[0]}"], check=True)
    done.touch()


if __name__ == "__main__":
    for each in combinations():
        if each.is_long:
            make(each)
