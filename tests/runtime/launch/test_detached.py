import os
import signal
import time
from pathlib import Path

from recycle.control.joinfile import new_token
from recycle.runtime.launch.detached import fork_keeper
from recycle.state.client import KeeperClient, send
from recycle.state.errors import KeeperLost
from recycle.state.keeper import keeper_address, listen
from recycle.state.ladder import StatePart

LISTENING = "00010000"


def settles(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def holders(token):
    """The processes that have the address of a run's keeper, by their titles."""
    table = Path("/proc/net/unix").read_text().splitlines()
    name = keeper_address(token).replace("\0", "@")
    (inode,) = {line.split()[6] for line in table if line.endswith(name) and line.split()[3] == LISTENING}
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(each.readlink()) == f"socket:[{inode}]" for each in (process / "fd").iterdir()):
                found[(process / "cmdline").read_text().strip("\0 ")] = int(process.name)
        except OSError:
            continue  # it has ended, or is not ours
    return found


def test_a_keeper_that_is_killed_alone_is_started_again_at_the_same_address():
    token = new_token()
    fork_keeper([listen(token)], token, 1000)
    client = KeeperClient(keeper_address(token), token, "here")
    delivery = client.offer(StatePart(0, 0, 0, 0, 1), b"", 1000)
    delivery.commit(send({0: [delivery]}, b"", [(0, memoryview(bytes(1000)))])[0])
    assert len(client.copies()) == 1
    first = settles(lambda: holders(token).get("recycle: keeper"))
    os.kill(first, signal.SIGKILL)

    def found():
        try:
            return client.copies()
        except KeeperLost:
            return None

    settles(lambda: found() == ())
    assert holders(token)["recycle: keeper"] != first
    client.dismiss()
    settles(lambda: found() is None)
