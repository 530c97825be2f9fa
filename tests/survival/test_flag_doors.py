"""What another user of the machine can do to a job of Megatron's that torchrun has started: keep it from nothing."""

import signal
import sys
from contextlib import ExitStack, suppress
from itertools import product
from typing import Any

import pytest

from harness.doors import AGENT, allow_few, everybody, names_of
from harness.flag_runs import (
    FLAGGED,
    VARIABLES,
    agents,
    deaths,
    losses,
    make_dataset,
    nearly,
    needs_training,
    printed,
    returns,
    words_of,
)
from harness.floods import FLOODS, hear
from harness.ports import free_port
from harness.processes import children, send_signal, title
from harness.sockets import listening
from harness.started import Started
from harness.strangers import as_stranger, needs_root, readable
from harness.undisturbed import trained_by_script
from recycle.control.board.joinfile import JoinFile
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import unseal
from recycle.control.store.tcp_store import TorchStore
from recycle.runtime.launch.meet.secret import secret_of_host

pytestmark = [needs_root, needs_training, pytest.mark.long, pytest.mark.timeout(1200)]

LENGTH = 14
HOLDS = 2, 6, 10
PATIENCE = 600
ON = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 1)
VANDAL = (sys.executable, "-m", "harness.scripts.vandal", "127.0.0.1")
CORNERS = "recycle/0/members/", "recycle/0/start/", "recycle/0/"
"""Of torchrun's store: the run's own, that of the processes before it, and that of torch's groups."""

SAYS_NOTHING = "/come/", "/bells/", "/said/", "/probe", "/reached/", "torchelastic"
"""In the names of keys whose values decide nothing."""


@pytest.fixture
def job(tmp_path, reachable, monkeypatch):
    """It is held before some iterations until it is told to go on."""
    monkeypatch.chdir(tmp_path)
    port = free_port()
    for step in HOLDS:
        (tmp_path / str(step)).touch()
    kept = ("--recycle-keep-in-memory", "copies=1", "--recycle-record", reachable / "record")
    words = words_of(make_dataset(tmp_path / "text"), *ON, *kept, iterations=LENGTH, script="held_gpt.py")
    torchrun = ("-W", "ignore", "-m", "torch.distributed.run", "--master-port", str(port), "--nproc-per-node", "4")
    with ExitStack() as ends:
        job = Started([sys.executable, *torchrun, *FLAGGED, *words], variables={**VARIABLES, "HELD": str(tmp_path)})
        ends.callback(job.kill)
        job.wait_for("iteration        2/", PATIENCE)
        job.port, job.folder, job.reachable = port, tmp_path, reachable
        job.door = JoinFile.read(reachable / "record" / "memory" / "join.json")
        yield job


def all_of(job):
    return everybody(job.process.pid, job.door.token)


def doors_of(job):
    """Where its own processes listen; what torch listens at belongs to all who reach it."""
    names, found = names_of(job.door.token), []
    for each in listening(all_of(job)):
        titles = {title(holder) for holder in each.holders}
        if each.address in names:
            found.append(each)
        elif isinstance(each.address, tuple) and each.address[1] == job.port:
            assert all("torch.distributed.run" in name for name in titles), titles
        else:
            # Of its transport, at which a worker listens for its peers alone.
            assert all(name.startswith("recycle: W") for name in titles), (each, titles)
            with pytest.raises(TimeoutError):
                each.connect(0.5)
    # A keeper, whoever takes signs of life, and four agents.
    assert len(found) == 2 + 4, found
    return found


def require_sealed(job):
    """All that is in torchrun's store and decides anything has the seal of the run, or of its user's processes."""
    store = TorchStore("127.0.0.1", job.port)
    secrets = job.door.token, secret_of_host()
    names = [key for key in store.torch_store.list_keys() if not any(each in key for each in SAYS_NOTHING)]
    # What is not needed any more may be deleted meanwhile.
    found = {key: value for key, value in zip(names, map(store.get, names), strict=True) if value is not None}
    assert any("//cpu//" in key for key in found), "torch's own groups meet elsewhere"
    assert not [key for key, value in found.items() if any(each.encode() in value for each in secrets)]
    # How many entries a log has only says where to look.
    assert not [key for key, value in found.items() if not value.isdigit() and not is_sealed(key, value, secrets)]


def is_sealed(key, value, secrets):
    """For its key, or the log that it is an entry of."""
    for secret, corner, name in product(secrets, CORNERS, (key, key.rpartition("/")[0])):
        with suppress(ControlError):
            unseal(secret, name.removeprefix(corner), value, Any)
            return True
    return False


def go_on(job, step):
    (job.folder / str(step)).unlink()


def test_a_job_of_torchruns_comes_to_its_end_whatever_another_user_does(job, shared_runs):
    require_sealed(job)
    doors = doors_of(job)

    def try_all():
        names = names_of(job.door.token)
        agents = [each for each in doors if names[each.address] == AGENT]
        assert not any(hear(agents, 0.5).values())
        assert all(len(heard) in (0, 16) for heard in hear([*{*doors}.difference(agents)]).values())
        assert not [*readable(job.reachable)]

    with as_stranger(try_all):
        pass
    before = {each: title(each) for each in all_of(job)}
    allow_few(before)
    vandal = Started([*VANDAL, str(job.port), "1"])
    with ExitStack() as ends:
        ends.callback(vandal.kill)
        ends.enter_context(as_stranger(lambda: FLOODS["idle"](doors)))
        vandal.wait_for("400 strikes", PATIENCE)
        go_on(job, HOLDS[0])
        job.wait_for(f"iteration {HOLDS[1]:8}/", PATIENCE)
        vandal.process.send_signal(signal.SIGUSR1)
        vandal.wait_for("pause 0", PATIENCE)
        (worker,) = children(agents(job.process.pid)[1])
        send_signal(worker, signal.SIGKILL)
        go_on(job, HOLDS[1])
        job.wait_for("among them again", PATIENCE)
        vandal.process.send_signal(signal.SIGUSR1)
        vandal.wait_for("800 strikes", PATIENCE)
        assert {name for each, name in before.items() if not title(each)} == {before[worker]}, job.output
        go_on(job, HOLDS[2])
        assert job.ended(PATIENCE) == 0, job.output[-6000:]
    assert "a stranger writes to the store" in job.output
    assert deaths(printed(job.output)) == returns(printed(job.output)) == ["W1_0"]
    undisturbed = trained_by_script(shared_runs, job.folder / "text", iterations=LENGTH).left
    assert losses(printed(job.output)) == nearly(undisturbed)
