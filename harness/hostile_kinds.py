"""What is done to runs in hostile moments; here to their processes, by signals and by second commands."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from harness.hostile_places import Descriptors, Disks, Etcds, Files, FileSizes, Folders, Names, OwnStores
from harness.hostile_runs import STAGES
from harness.hostile_scenes import ENDED, TRAINED, Kind, Scene
from harness.processes import send_signal


class SecondRuns(Kind):
    """Another command comes to the folder of a run that is alive, or to a copy of it."""

    choices = ("begins there", "resumes there", "resumes a copy", "joins as a live server", "joins as no server")

    def strike(self, scene: Scene) -> None:
        other = scene.output.with_name("copy")
        if scene.choice == "resumes a copy":
            if scene.run.reach(25):
                _copy(scene.output, other)
                words = [str(other) if word == str(scene.output) else word for word in scene.words]
                scene.others.append(scene.start("--resume", words=words))
            return
        joins = ["join", str(scene.output), "--server", "W0_0" if "live" in scene.choice else "W7_7"]
        more = ["--resume"] if scene.choice == "resumes there" else []
        second = scene.start(*more, words=joins if "joins" in scene.choice else scene.words)
        status = second.end(40)
        said = [text for _, text in second.lines if text.startswith("recycle: ")]
        if scene.run.is_over:
            return
        if status in (0, None) or len(said) != 1 or second.lines[-1][1] != said[0]:
            scene.problems.append(f"the second one is not refused in a line, status {status}: {second.said[-300:]!r}")


class Workers(Kind):
    """A server's process, its agent or all of a stage gets a signal."""

    choices = (
        *(f"{server} {name}" for server in ("W0_0", "W1_1") for name in ("STOP", "TERM", "HUP", "INT", "ABRT", "QUIT")),
        *(f"agent of W0_1 {name}" for name in ("STOP", "TERM", "HUP", "INT", "KILL")),
        "all of a stage KILL",
        "all servers KILL",
        "W1_0 STOP for ever",
    )

    def strike(self, scene: Scene) -> None:
        victims, _, name = scene.choice.removesuffix(" for ever").rpartition(" ")
        pattern = {"all of a stage": rf"W\d_{STAGES - 1}", "all servers": r"W\d_\d"}.get(victims, victims)
        scene.run.send(f"^recycle: {pattern}$", signal.Signals[f"SIG{name}"])

    def heal(self, scene: Scene) -> None:
        if not scene.choice.endswith("for ever"):
            scene.run.send(r"^recycle: (agent of )?W\d_\d$", signal.SIGCONT)

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        # A server that was told to leave stays away, and so does one whose agent is dead: the server that is killed
        # then may be its stage's last.
        leaves = "TERM" in choice or "agent" in choice or "INT" in choice
        return (TRAINED, ENDED) if (leaves and killed) or "all" in choice else (TRAINED,)


class Launchers(Kind):
    """The command that has started the run gets a signal, alone or with all of its processes."""

    choices = (
        *("INT", "TERM", "HUP", "KILL", "STOP"),
        *("INT to all", "HUP to all", "STOP to all", "INT twice", "TERM twice"),
    )

    def strike(self, scene: Scene) -> None:
        name, _, more = scene.choice.partition(" ")
        number = signal.Signals[f"SIG{name}"]
        self._since = time.monotonic()
        if more == "to all":
            os.killpg(scene.run.process.pid, number)
            return
        send_signal(scene.run.process.pid, number)
        if more == "twice":
            time.sleep(0.1)
            send_signal(scene.run.process.pid, number)

    def heal(self, scene: Scene) -> None:
        if scene.choice.startswith("STOP") and not scene.run.is_over:
            os.killpg(scene.run.process.pid, signal.SIGCONT)
            scene.run.excuse(self._since)

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        return (TRAINED,) if choice.startswith("STOP") else (TRAINED, ENDED)


class Helpers(Kind):
    """The process that forks the servers, or one that keeps state in memory, is killed or stopped."""

    choices = ("fork server KILL", "fork server STOP", "keeper KILL", "keeper STOP")

    def prepare(self, scene: Scene) -> None:
        if "--keep-in-memory" not in scene.words and "keeper" in scene.choice:
            scene.words += ["--keep-in-memory", "copies=1"]

    def strike(self, scene: Scene) -> None:
        victim, _, name = scene.choice.rpartition(" ")
        scene.run.send(f"^recycle: {victim}$", signal.Signals[f"SIG{name}"])

    def heal(self, scene: Scene) -> None:
        scene.run.send("^recycle: (fork server|keeper)$", signal.SIGCONT)

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        return (TRAINED, ENDED) if choice == "fork server KILL" else (TRAINED,)


class Outputs(Kind):
    """The reader of the run's output closes it."""

    choices = ("closed",)

    def strike(self, scene: Scene) -> None:
        scene.is_heard = False
        scene.run.close_output()


KINDS: Mapping[str, Kind] = {
    "folder": Folders(),
    "file": Files(),
    "disk": Disks(),
    "own store": OwnStores(),
    "etcd": Etcds(),
    "name": Names(),
    "descriptors": Descriptors(),
    "file size": FileSizes(),
    "second run": SecondRuns(),
    "worker": Workers(),
    "launcher": Launchers(),
    "helper": Helpers(),
    "output": Outputs(),
}
"""What can be drawn."""


def _copy(source: Path, target: Path) -> None:
    """Copy a folder whose files come and go meanwhile."""
    for _ in range(20):
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(source, target, dirs_exist_ok=True)
            return
    raise AssertionError(f"{source} does not keep still")
