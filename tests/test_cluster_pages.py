"""The commands of docs/howto for clusters are such as ReCycle, torchrun and Slurm take."""

import os
import re
import shlex
import subprocess

import pytest
from click import Context

from harness.documents import block_with
from harness.paths import ROOT
from recycle.cli.verbs import group
from recycle.megatron.flag.command.flags import find_flags
from recycle.runtime.launch.meet.start import VARIABLES, find_start, refuse_elastic

FOLDER = ROOT / "docs" / "howto"
PAGES = [FOLDER / f"{name}.md" for name in ("slurm", "kubernetes", "torchrun")]
FENCE = re.compile(r"^```(?:sh|bash|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands():
    """Where each command begins in a page's blocks: the page, and the words up to the end of the line."""
    for page in PAGES:
        for block in FENCE.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.search(
                    r"(torchrun --\S.*|python -m recycle\.megatron .*|recycle (?:train|join|doctor) .*)", line
                )
                if found:
                    yield page.name, found[1].replace("$(which recycle)", "recycle")


COMMANDS = list(commands())


def words_of(command):
    """Up to what the shell takes, without what stands for the reader's own."""
    text = re.split(r" &$|\s{2,}#|'$", command)[0]
    return [word for word in shlex.split(text) if word not in ("...", "exec")]


def test_there_are_commands_of_each_kind():
    assert {page for page, _ in COMMANDS} == {page.name for page in PAGES}
    assert sum("recycle.megatron" in command for _, command in COMMANDS) >= 5
    assert sum(command.startswith("torchrun") for _, command in COMMANDS) >= 3


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_our_programs_take_them(page, command):
    words = words_of(command)
    if words[0] == "torchrun":
        refuse_elastic(["/usr/bin/torchrun", *words[1:]])
        own = [place for place, word in enumerate(words) if word in ("recycle.megatron", "recycle")]
        assert own, command
        words = words[own[0] :]
        words = ["python", "-m", *words] if words[0] == "recycle.megatron" else words
    if words[:3] == ["python", "-m", "recycle.megatron"]:
        flags, others = find_flags(words[4:])
        assert flags.on, command
        assert not [word for word in others if "recycle" in word], command
    else:
        verb = group.get_command(Context(group), words[1])
        verb.make_context(words[1], [word for word in words[2:] if not word.startswith("$")], resilient_parsing=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_processes_that_are_started_by_hand_are_given_all_that_they_need(page):
    blocks = [block for block in FENCE.findall(page.read_text()) if re.search(r"\bRANK=", block)]
    assert blocks
    for block in blocks:
        known = page.read_text() if page.name == "slurm.md" else block
        assert [name for name in VARIABLES if name not in known] == []


@pytest.mark.parametrize(("page", "file"), [("slurm", "job.sbatch"), ("kubernetes", "kubernetes.yaml")])
def test_the_files_to_copy_are_those_of_the_pages(page, file):
    block = FENCE.findall((FOLDER / f"{page}.md").read_text())[0]
    assert (ROOT / "examples" / file).read_text() == block


def test_the_script_for_mpirun_says_what_a_start_takes(tmp_path):
    block = block_with(ROOT / "docs" / "reference" / "cluster.md", "OMPI_COMM_WORLD_RANK").replace(
        "/shared/", f"{tmp_path}/"
    )
    # A stand-in for mpirun: of all ranks, it starts the last one, with what Open MPI and its -x set.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        "#!/bin/bash\n"
        "export OMPI_COMM_WORLD_RANK=15 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=7\n"
        "for word; do\n"
        '    case $word in MASTER_*=*) export "$word" ;; */rank.sh) exec "$word" env ;; esac\n'
        "done\n"
    )
    mpirun.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", block], env={"PATH": path}, capture_output=True, text=True, check=True)
    said = dict(line.split("=", 1) for line in done.stdout.splitlines())
    start = find_start(said)
    assert start is not None
    assert (start.rank, start.count, start.host, start.port) == (15, 16, "host0", 29500)
    assert said["LOCAL_RANK"] == "7"
    assert said["RECYCLE_TOKEN_FILE"] == f"{tmp_path}/secret"
