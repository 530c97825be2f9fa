"""``recycle train`` in processes that are started apart: by torchrun, or by hand."""

import os
import signal
import subprocess
import sys
from multiprocessing import get_context

from harness.forked import TRAINER
from harness.ports import free_port
from harness.started import TRAIN, Started, by_hand, wait_until
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.job import Server
from recycle.view.chart import make_chart
from recycle.view.subject import load_subject

SMALL = ("train", "--stages", "2", "--pipelines", "2", "--micro-batches", "2")


def test_the_processes_that_it_starts_are_the_servers(tmp_path):
    program = tmp_path / "main.py"
    program.write_text("from recycle.cli import main\nmain()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(program)]
    run = [*SMALL, "--dead", "W1_0", "--iterations", "2", "--evaluate-every", "2", "-o", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, *run], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("iteration 2/2: loss ")]
    assert len(lines) == 1
    assert "3/4 servers" in lines[0]
    events = {path.name for path in (tmp_path / "run" / "events").iterdir()}
    assert events == {"launcher.jsonl", "W0_0.jsonl", "W0_1.jsonl", "W1_1.jsonl"}
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "checkpoint.json").exists()
    subject = load_subject(tmp_path / "run")
    assert (subject.timeline.failed, subject.history.servers) == ((Server(1, 0),), 4)
    assert ("dead", "W1_0") in make_chart(subject).facts


def test_another_number_of_processes_is_refused(tmp_path):
    words = [*SMALL, "--dead", "W1_0"]
    alone = by_hand(0, 2, "127.0.0.1", free_port())
    first = Started([*TRAIN, *words, "-o", str(tmp_path / "run")], None, alone, TRAINER)
    assert first.ended() == 2, first.output
    expected = "recycle: WORLD_SIZE is 2, and the plan has 3 live servers, a process each: start torchrun with 3"
    assert expected in first.output


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with listen() as taken:
        variables = by_hand(0, 4, "127.0.0.1", taken.getsockname()[1])
        first = Started([*TRAIN, *SMALL, "-o", str(tmp_path / "run")], None, variables, TRAINER)
        assert first.ended() == 2, first.output
    address = f"127.0.0.1:{variables['MASTER_PORT']}"
    said = f"recycle: store address {address} cannot be used: Address already in use"
    assert said in first.output
    assert "; give all processes a free MASTER_PORT" in first.output
    assert "Traceback" not in first.output


def test_who_waits_says_in_one_line_that_the_first_process_is_lost(tmp_path):
    with listen() as listener:
        port = listener.getsockname()[1]
        first = get_context("fork").Process(target=serve_alone, args=(listener,))
        first.start()
    words = [*SMALL, "-o", str(tmp_path / "run")]
    other = Started([*TRAIN, *words], None, by_hand(1, 4, "127.0.0.1", port), TRAINER)
    store = TorchStore("127.0.0.1", port, prefix="recycle/0/start")
    wait_until(lambda: store.get("come/1"))
    first.kill()
    assert other.ended() == 2, other.output
    assert f"recycle: the run cannot begin: the store at 127.0.0.1:{port} does not answer; see what" in other.output
    assert "Traceback" not in other.output


def serve_alone(listener):
    served = serve(listener)
    while served is not None:
        signal.pause()
