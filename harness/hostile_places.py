"""What is done in hostile moments to what runs use: folders, files, disks, limits, stores and names."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.hostile_runs import remove
from harness.hostile_scenes import ENDED, REFUSED, TRAINED, Kind, Scene
from harness.ports import free_port
from harness.started import wait_until

QUOTA = 1 << 24
DISK = "10m"
"""The size of a small disk, in which a run has room as long as nothing else is on it."""


class Folders(Kind):
    """A folder is renamed, removed, or a file is in its place."""

    choices = tuple(
        f"{name} {what}"
        for name in ("tensorboard", "events", "checkpoints", "run")
        for what in ("renamed", "removed", "a file")
    )

    def strike(self, scene: Scene) -> None:
        name, _, what = scene.choice.partition(" ")
        place = scene.output if name == "run" else scene.output / name
        if what == "renamed":
            with contextlib.suppress(FileNotFoundError):  # before the first checkpoint there is no folder of them
                place.rename(scene.folder / f"{name}-elsewhere")
            return
        remove(place)
        if what == "a file":
            remove(place)
            with contextlib.suppress(IsADirectoryError):
                place.write_text("in its place\n")

    def after(self, scene: Scene) -> None:
        for place in (scene.output, scene.output / "checkpoints"):
            if place.is_file():
                place.unlink()

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        # The last checkpoint can be written where something can be made anew.
        return (TRAINED, ENDED) if choice in ("checkpoints a file", "run a file") else (TRAINED,)


class Files(Kind):
    """A file that the run has read, or may want to read again, is gone."""

    choices = ("run.json", "plan.json", "plans.zip", "join.json", "lock", "model.toml", "text", "text emptied")

    def strike(self, scene: Scene) -> None:
        name, _, emptied = scene.choice.partition(" ")
        place = next(each / name for each in (scene.folder, scene.output) if (each / name).exists())
        if emptied:
            os.truncate(place, 0)
        else:
            place.unlink()


class Disks(Kind):
    """The disk of the run's folder, or of temporary files, is full."""

    choices = ("for a while", "until the end", "at the start", "for temporary files")

    def prepare(self, scene: Scene) -> None:
        place = self._place(scene)
        scene.mount(place, DISK)
        if scene.choice == "for temporary files":
            scene.variables["TMPDIR"] = str(place)
        if not self.strikes_at_iteration(scene.choice):
            self.strike(scene)

    def strikes_at_iteration(self, choice: str) -> bool:
        return choice in ("for a while", "until the end")

    def strike(self, scene: Scene) -> None:
        with (self._place(scene) / "fill").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 16, 1 << 10, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def heal(self, scene: Scene) -> None:
        if scene.choice == "for a while":
            self.after(scene)

    def after(self, scene: Scene) -> None:
        (self._place(scene) / "fill").unlink(missing_ok=True)

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        return {
            "for a while": (TRAINED,),
            "until the end": (TRAINED, ENDED),
            "at the start": (REFUSED,),
            "for temporary files": (TRAINED, REFUSED),
        }[choice]

    def _place(self, scene: Scene) -> Path:
        return scene.folder / "temporary" if scene.choice == "for temporary files" else scene.output


class Limits(Kind):
    """Its processes have a limit of the system's.

    Attributes:
        limit: its name, for prlimit.
    """

    limit = ""

    def prepare(self, scene: Scene) -> None:
        scene.limits = [f"--{self.limit}={scene.choice}:{scene.choice}"]

    def strikes_at_iteration(self, choice: str) -> bool:
        return False

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        return (TRAINED, REFUSED, ENDED)


class Descriptors(Limits):
    """Its processes may have few descriptors open."""

    choices = tuple(map(str, range(40, 201, 5)))
    limit = "nofile"


class FileSizes(Limits):
    """Its files may have few bytes."""

    choices = ("0", "4096", "30000", "100000", "400000", "3000000")
    limit = "fsize"

    def lets_keep(self, choice: str) -> bool:
        # Memory that processes hand each other is a file without a name; a part of a stage takes some 160 kB.
        return int(choice) >= 400_000


class OwnStores(Kind):
    """The process of the run's own store is killed or stopped."""

    choices = ("killed", "stopped")

    def strike(self, scene: Scene) -> None:
        scene.run.send("^recycle: store$", signal.SIGKILL if scene.choice == "killed" else signal.SIGSTOP)

    def heal(self, scene: Scene) -> None:
        scene.run.send("^recycle: store$", signal.SIGCONT)

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        # A failure while the store is lost ends the run, after a checkpoint was made.
        return (TRAINED, ENDED) if killed else (TRAINED,)


class Etcds(Kind):
    """The member of etcd on which a run relies does not do its work."""

    choices = ("stopped", "killed and started", "started empty", "full", "comes late", "never there")

    def why_not(self) -> str:
        return missing_etcd()

    def prepare(self, scene: Scene) -> None:
        scene.etcd = scene.stack.enter_context(etcd(quotas=[QUOTA]))
        scene.words += ["--store", scene.etcd.url]
        if not self.strikes_at_iteration(scene.choice):
            scene.etcd.members[0].kill()

    def strikes_at_iteration(self, choice: str) -> bool:
        return choice not in ("comes late", "never there")

    def strike(self, scene: Scene) -> None:
        assert scene.etcd is not None
        (member,) = scene.etcd.members
        match scene.choice:
            case "stopped":
                member.pause()
            case "killed and started":
                member.kill()
            case "started empty":
                member.start_anew()
            case "full":
                scene.etcd.fill()

    def heal(self, scene: Scene) -> None:
        assert scene.etcd is not None
        (member,) = scene.etcd.members
        match scene.choice:
            case "stopped":
                member.go_on()
            case "killed and started" | "comes late":
                member.start()
            case "full":
                scene.etcd.make_room()

    def after(self, scene: Scene) -> None:
        assert scene.etcd is not None
        if scene.choice == "stopped":
            scene.etcd.members[0].go_on()

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        if not self.strikes_at_iteration(choice):
            return (REFUSED,) if choice == "never there" else (TRAINED, REFUSED)
        return (TRAINED, ENDED) if killed else (TRAINED,)


class Names(Kind):
    """A name that there is not, or a place where there is no etcd."""

    choices = (
        "address with no such name",
        "etcd with no such name",
        "etcd that is deaf",
        "etcd that is something else",
    )

    def prepare(self, scene: Scene) -> None:
        scene.words += {
            "address with no such name": ["--address", "no-such-host.invalid"],
            "etcd with no such name": ["--store", "etcd://no-such-host.invalid:2379"],
        }.get(scene.choice, [])
        if scene.choice == "etcd that is deaf":
            port = scene.stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            scene.words += ["--store", f"etcd://127.0.0.1:{port}"]
        elif scene.choice == "etcd that is something else":
            server = subprocess.Popen(
                ["python", "-m", "http.server", "--bind", "127.0.0.1", str(port := free_port())],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=scene.folder,
            )
            scene.stack.callback(server.wait)
            scene.stack.callback(server.kill)
            wait_until(lambda: _is_listened_at(port), 30)
            scene.words += ["--store", f"etcd://127.0.0.1:{port}"]

    def strikes_at_iteration(self, choice: str) -> bool:
        return False

    def allowed(self, choice: str, *, killed: bool) -> Collection[str]:
        return (REFUSED,)


def _is_listened_at(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False
