"""A hostile moment's surroundings, and what each kind of them says."""

import contextlib
import subprocess
from collections.abc import Collection
from pathlib import Path

from harness.etcd import Etcd
from harness.hostile_runs import Run

TRAINED, REFUSED, ENDED = "trained", "refused", "ended"
"""How a run may end: at its last iteration, before its first, and in between."""


class Scene:
    """A moment's runs, and what is around them.

    Args:
        folder: of the moment.
        choice: which way of the kind was drawn.
        seconds: how long the hostile thing lasts.
        stack: what is undone at the moment's end.

    Attributes:
        words: arguments of the run.
        limits: of prlimit, for it.
        variables: for its environment.
        others: further runs that have to come to their end as well.
        problems: what was wrong beside the run itself.
        is_heard: whether its output is read.
        etcd: its store, if it has one there.
    """

    def __init__(self, folder: Path, choice: str, seconds: float, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.choice = choice
        self.seconds = seconds
        self.stack = stack
        self.words: list[str] = []
        self.limits: list[str] = []
        self.variables: dict[str, str] = {}
        self.runs: list[Run] = []
        self.others: list[Run] = []
        self.problems: list[str] = []
        self.is_heard = True
        self.etcd: Etcd | None = None

    @property
    def run(self) -> Run:
        """The one to which it is done."""
        return self.runs[0]

    @property
    def output(self) -> Path:
        """Its folder."""
        return self.folder / "run"

    def start(self, *more: str, words: Collection[str] = ()) -> Run:
        """Start a run, the first one or a further one."""
        first = not self.runs
        started = Run([*(words or self.words), *more], self.limits if first else (), self.variables)
        self.runs.append(started)
        return started

    def mount(self, place: Path, size: str) -> None:
        """Have a small disk there."""
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "hostile", str(place)], check=True)
        self.stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)


class Kind:
    """Something hostile; a subclass says what is done.

    Attributes:
        choices: its ways.
    """

    choices: tuple[str, ...] = ()

    def why_not(self) -> str:
        """Why it cannot be tried here; empty if it can."""
        return ""

    def prepare(self, scene: Scene) -> None:
        """Do what comes before the start."""

    def strikes_at_iteration(self, choice: str) -> bool:
        """Whether it is done while the run trains."""
        return True

    def strike(self, scene: Scene) -> None:
        """Do it."""

    def heal(self, scene: Scene) -> None:
        """Undo it while the run goes on, some seconds later."""

    def after(self, scene: Scene) -> None:
        """Undo what is left of it when the run has ended."""

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        """How the run may end."""
        return (TRAINED,)

    def lets_keep(self, choice: str) -> bool:
        """Whether the memory of this machine can keep the state of a run that is told to."""
        return True

    def resumes(self, scene: Scene) -> bool:
        """Whether a run that has ended has to go on with --resume: it does where there is a checkpoint."""
        return any((scene.output / "checkpoints").glob("step-*"))
