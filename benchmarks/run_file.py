"""What came of the runs of a long row: a line of JSON for each, in a file with which the same command goes on."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


class RunFile:
    """Runs that were made, and those that are made now.

    Args:
        path: of the file, which need not be there.
        rows: those that count.

    Attributes:
        runs: of these rows, in the order in which they were made.
    """

    def __init__(self, path: Path, rows: Collection[str]) -> None:
        self._path = path
        whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
        # Of a line that was cut off, nothing is left.
        path.write_text(f"{whole}\n" if whole else "")
        self.runs: list[dict[str, Any]] = [each for each in map(json.loads, whole.splitlines()) if each["row"] in rows]

    def add(self, run: dict[str, Any]) -> None:
        """A run was made."""
        self.runs.append(run)
        with self._path.open("a") as file:
            file.write(json.dumps(run) + "\n")

    def of(self, row: str) -> list[dict[str, Any]]:
        """Those of one row."""
        return [each for each in self.runs if each["row"] == row]
