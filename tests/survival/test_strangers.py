"""What others do who reach the ports of a run and lack its token."""

import os
import signal
import socket
import subprocess
import sys

from harness.processes import send_signal
from harness.started import TRAIN, Started
from recycle.control.board.joinfile import JoinFile

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"

VANDAL = """
import sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False)
for key in ["view", "opening", "run", "epoch", *(f"{kind}/W{p}_0#0" for kind in ("death", "beat") for p in range(2))]:
    store.set(key, "garbage")
for epoch in range(4):
    for key in ("alarm", "plan/W0_0#0", "log/1", "turn/W0_0#0", "bell", "end", "requests/1"):
        store.set(f"epoch/{epoch}/{key}", "garbage")
print(store.num_keys())
"""


def test_strangers_end_no_run_and_keep_nobody_from_surviving(tmp_path):
    (tmp_path / "model.toml").write_text(MODEL)
    size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", "20000", "--restarts", "0"]
    run = Started([*TRAIN, "train", *size, "--model", str(tmp_path / "model.toml"), "-o", str(tmp_path / "run")])
    held = []
    try:
        run.wait_for("iteration 5/")
        door = JoinFile.read(tmp_path / "run" / "join.json")
        for port in (door.port, door.watch):
            for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\0" * 1000, b"\xff" * 1000):
                connection = socket.create_connection((door.host, port))
                connection.sendall(garbage)
                held.append(connection)
        for connection in held[::2]:
            connection.close()
        vandal = [sys.executable, "-c", VANDAL, door.host, str(door.port)]
        subprocess.run(vandal, check=True, capture_output=True)
        run.wait_for("a stranger writes to the store, and is ignored")
        (worker,) = run.processes("^recycle: W1_0")
        send_signal(worker, signal.SIGKILL)
        run.wait_for(": 1 of 2 servers")
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM, run.output
        assert "with a checkpoint" in run.output
    finally:
        for connection in held:
            connection.close()
        run.kill()
