"""The environment of all processes in these tests, and those that are started apart."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from harness.forked import TRAINER
from harness.started import TRAIN, Started, by_hand

# What torch says of lost connections is what these tests are about: it would only fill the logs.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
# Torch looks up the name of every store's address. No lookup of a namespace's address is ever answered by a name, and
# one that is not answered at all must not take longer than what is tested.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture
def start():
    """Start processes, and end what is left of them; ``recycle train`` itself is forked.

    What they said is shown of a test that fails.
    """
    started = []

    def start(words, host=None, variables=None):
        imported = TRAINER if tuple(words[: len(TRAIN)]) == TRAIN else ""
        started.append(Started(words, host, variables, imported))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        sys.stdout.write(f"{' '.join(each.words)}\n{each.output}\n")


@pytest.fixture
def start_each(start):
    """Start a process of a run on each of some hosts, and wait until they train."""

    def start_each(words, hosts, master="host1"):
        ranks = [start(words, host, by_hand(rank, len(hosts), master, 29500)) for rank, host in enumerate(hosts)]
        ranks[0].wait_for("iteration 5/")
        return ranks

    return start_each


@pytest.fixture
def reachable():
    """A folder that every user of the machine reaches, which is not so of pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
