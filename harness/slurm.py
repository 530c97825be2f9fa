"""A Slurm cluster on hosts of namespaces: munge, a controller on the first host, and a node on each of the others."""

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.hosts import Host, hosts
from harness.hosts import missing as missing_hosts

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
ALSO_IN = f"{os.environ.get('PATH', '')}:/usr/sbin"
CONFIGURATION = """\
ClusterName=recycle
SlurmctldHost={controller.name}({controller.address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=30
JobRequeue=0
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; empty if there can."""
    absent = [each for each in TOOLS if shutil.which(each, path=ALSO_IN) is None]
    return missing_hosts() or (f"a Slurm cluster takes {', '.join(absent)}" if absent else "")


class Cluster:
    """One that is up.

    Args:
        controller: the host of ``slurmctld``, which is no node.
        nodes: the others.
        folder: of its files.
    """

    def __init__(self, controller: Host, nodes: Sequence[Host], folder: Path) -> None:
        self.controller = controller
        self.nodes = nodes
        self.variables: Mapping[str, str] = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": ALSO_IN}

    def ask(self, *words: str) -> str:
        """What one of Slurm's commands prints on the controller's host."""
        done = subprocess.run(
            self.controller.command(*words), env=os.environ | self.variables, capture_output=True, text=True, check=True
        )
        return done.stdout


@contextlib.contextmanager
def cluster(count: int, folder: Path) -> Iterator[Cluster]:
    """A cluster of some nodes, beside the controller.

    Args:
        count: of nodes.
        folder: for its files; empty.
    """
    with hosts(count + 1) as (controller, *nodes):
        for name in ("state", *(f"spool-{each.name}" for each in nodes)):
            (folder / name).mkdir(parents=True)
        described = "".join(f"NodeName={each.name} NodeAddr={each.address} CPUs=16 State=UNKNOWN\n" for each in nodes)
        text = CONFIGURATION.format(controller=controller, folder=folder)
        (folder / "slurm.conf").write_text(described + text)
        # Hosts show no control groups, and Slurm's way with those of old does not look for them before it needs one.
        (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}\n")
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        made = Cluster(controller, nodes, folder)
        commands = [
            # A socket with a name is reached from all hosts: they share this machine's files.
            (controller, ["munged", "--foreground", "--force", f"--key-file={key}", *files]),
            (controller, ["slurmctld", "-D"]),
            *((each, ["slurmd", "-D", "-N", each.name]) for each in nodes),
        ]
        processes = []
        try:
            for host, words in commands:
                with (folder / f"{words[0]}-{host.name}.out").open("w") as output:
                    processes.append(
                        subprocess.Popen(
                            host.command(*words),
                            env=os.environ | made.variables,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                        )
                    )
            deadline = time.monotonic() + 60
            while not _are_idle(made, count):
                assert time.monotonic() < deadline, made.ask("sinfo")
                time.sleep(0.2)
            yield made
        finally:
            for each in processes:
                each.kill()
                each.wait()


def _are_idle(made: Cluster, count: int) -> bool:
    try:
        return made.ask("sinfo", "-h", "-t", "idle", "-o", "%D").split() == [str(count)]
    except subprocess.CalledProcessError:
        return False  # the controller is on its way
