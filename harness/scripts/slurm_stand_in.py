"""What a batch script asks of Slurm, on hosts of namespaces where there is no Slurm: srun, scontrol, scancel; and curl.

Usage: slurm_stand_in.py FOLDER NAME ARGUMENT...

In the folder, ``hosts.json`` has each host's name and the first process on it. A step leaves there which processes it
has started, and scancel signals these with all below them, as Slurm does.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from harness.processes import family, send_signal

SPACES = ("--net", "--uts", "--ipc", "--pid", "--mount", "--time")


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options before a command, and the command."""
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        if not word.startswith("--"):
            return found, words[number:]
        name, _, value = word.removeprefix("--").partition("=")
        found[name] = value
    return found, []


def on_host(first: int, words: list[str]) -> list[str]:
    """A command line that runs another one on a host."""
    return ["nsenter", "--target", str(first), *SPACES, f"--wd={Path.cwd()}", "--", *words]


def srun(folder: Path, hosts: dict[str, int], words: list[str]) -> int:
    """Start a step's tasks on its nodes, and wait for them."""
    given, command = options(words)
    assert given.keys() >= {"no-kill", "overlap"}, "a node that fails would end the job, or the step would wait"
    assert given["kill-on-bad-exit"] == "0"
    nodes = given.get("nodelist", os.environ.get("SLURM_JOB_NODELIST", "")).split(",")
    assert int(given["nodes"]) == len(nodes)
    each = int(given.get("ntasks-per-node", 0)) or int(given["ntasks"]) // len(nodes)
    step = next(number for number in count() if not (folder / f"step-{number}").exists())
    tasks = []
    with ExitStack() as files:
        for rank in range(len(nodes) * each):
            node = nodes[rank // each]
            place = Path(given["output"].replace("%t", str(rank))) if "output" in given else None
            output = None if place is None else files.enter_context(place.open("a"))
            variables = {
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank % each),
                "SLURM_NODEID": str(rank // each),
                "SLURM_STEP_NUM_TASKS": str(len(nodes) * each),
                "SLURM_STEP_NUM_NODES": str(len(nodes)),
                "SLURM_STEP_NODELIST": ",".join(nodes),
                "SLURMD_NODENAME": node,
            }
            words = on_host(hosts[node], command)
            tasks.append(subprocess.Popen(words, env=os.environ | variables, stdout=output, stderr=output))
    (folder / f"step-{step}").write_text(json.dumps([task.pid for task in tasks]))
    signal.signal(signal.SIGTERM, lambda *_: cancel(folder, step, signal.SIGKILL))
    return max(abs(task.wait()) for task in tasks)


def cancel(folder: Path, step: int, number: int) -> None:
    """Signal all processes of a step."""
    for task in json.loads((folder / f"step-{step}").read_text()):
        with suppress(ProcessLookupError):
            for pid in family(task) - {task}:
                send_signal(pid, number)


def main() -> int:
    folder, name, *words = sys.argv[1:]
    hosts = json.loads(Path(folder, "hosts.json").read_text())
    match name, words:
        case "srun", _:
            return srun(Path(folder), hosts, words)
        case "scontrol", ["show", "hostnames", listed]:
            sys.stdout.write(listed.replace(",", "\n") + "\n")
        case "scancel", [option, place]:
            number = getattr(signal, f"SIG{option.removeprefix('--signal=')}")
            cancel(Path(folder), int(place.partition(".")[2]), number)
        case "curl", _:
            return subprocess.run(
                on_host(next(iter(hosts.values())), ["/usr/bin/curl", *words]), check=False
            ).returncode
        case _:
            raise AssertionError(f"no {name} {words} here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
