"""Runs over several hosts: torchrun on each, what srun sets, or variables set by hand; and hosts that die."""

import re
import signal
import socket
import subprocess
import time

import pytest

from harness.hosts import hosts, missing
from harness.processes import family, is_running, send_signal
from harness.sockets import listening
from harness.started import TRAIN, count_iterations, recorded, small_run, wait_until
from recycle.control.membership.durations import Durations
from recycle.record.recording import DeathLine
from recycle.runtime.launch.meet.secret import SECRET

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(400)]

ITERATIONS = 40
DURATIONS = Durations()


def words(folder, stages=2, iterations=ITERATIONS):
    return small_run(folder / "run", 2, stages, iterations)


@pytest.fixture
def three():
    """The second one was started an hour before the others."""
    with hosts(3, ahead={1: 3600}) as found:
        yield found


def test_a_run_whose_variables_are_set_by_hand_outlives_a_host(three, start_each, tmp_path):
    """And their secret by the user."""
    first, second, _ = three
    secret = tmp_path / "secret"
    secret.write_text("5" * 64)
    arguments = [*TRAIN, *words(tmp_path, stages=1), "--token-file", str(secret)]
    ranks = start_each(arguments, [first, second], first.address)
    second.crash()
    assert ranks[0].ended() == 0, ranks[0].output
    assert f"iteration {ITERATIONS}/{ITERATIONS}" in ranks[0].output
    assert not (tmp_path / "run" / SECRET).exists()


def test_a_host_that_is_cut_off_writes_nothing_and_ends_when_it_hears_that_the_others_go_on(
    three, start_each, tmp_path
):
    arguments = [*TRAIN, *words(tmp_path, stages=1, iterations=20_000), "--checkpoint-every", "1"]
    ranks = start_each(arguments, three[:2])
    three[1].pull_plug()
    ranks[0].wait_for("W1_0 died: has given no sign of life for")
    ranks[0].wait_for(": 1 of 2 servers")
    before = count_iterations(tmp_path / "run", "W1_0")
    worker = workers(three[1], "W1_0")
    assert worker
    three[1].push_plug()
    # Its worker ends, or is ended by its agent and started again; what was started there waits for the end of the run.
    wait_until(lambda: worker.isdisjoint(workers(three[1], "W1_0")))
    assert count_iterations(tmp_path / "run", "W1_0") == before
    assert ranks[1].process.poll() is None
    tell_to_end(three[0])
    assert ranks[0].ended() == 128 + signal.SIGTERM, ranks[0].output


def test_a_network_that_is_away_for_seconds_costs_no_server(three, start_each, tmp_path):
    """The first host reaches the store all the time, and hears nobody for longer than a dead host has."""
    arguments = [*TRAIN, *small_run(tmp_path / "run", 3, 1, 20_000)]
    ranks = start_each(arguments, three)
    for host in three:
        host.pull_plug()
    time.sleep(DURATIONS.silence + 2)
    for host in three:
        host.push_plug()
    # Within this time it would have missed those that are heard again last.
    time.sleep(DURATIONS.silence + 1)
    made = count_iterations(tmp_path / "run")
    wait_until(lambda: count_iterations(tmp_path / "run") > made + ITERATIONS)
    assert not [each for each in recorded(tmp_path / "run") if isinstance(each, DeathLine)]
    assert ranks[0].process.poll() is None


@pytest.mark.long
def test_the_loss_of_a_first_host_that_closes_no_connection_ends_the_run_with_a_line(three, start_each, tmp_path):
    """The kernel itself would go on sending for a quarter of an hour."""
    arguments = [*TRAIN, *words(tmp_path, stages=1, iterations=20_000)]
    ranks = start_each(arguments, three[:2])
    three[0].pull_plug()
    three[0].crash()
    assert ranks[1].ended() == 1, ranks[1].output
    assert "if its host is lost, go on with --resume" in ranks[1].output
    assert "Traceback" not in ranks[1].output


def titles(host):
    """Of all processes of a host."""
    shown = subprocess.run(host.command("ps", "ax", "-o", "args="), capture_output=True, text=True, check=True)
    return {line.strip() for line in shown.stdout.splitlines()}


def workers(host, server):
    """The processes of a server on a host."""
    found = subprocess.run(host.command("pgrep", "-f", f"^recycle: {server} *$"), capture_output=True, check=False)
    return {*found.stdout.split()}


def tell_to_end(host):
    """Send SIGTERM to what was started on a host; all below it have other titles."""
    subprocess.run(host.command("pkill", "-TERM", "-f", "harness.scripts.train"), check=True)


def test_whatever_listens_takes_a_port_that_a_firewall_can_name_and_a_host_that_is_told_to_end_leaves(
    three, start_each, tmp_path
):
    """The kernel gives the ports, to gloo too; and the host leaves between two iterations."""
    for host in three[:2]:
        limit = host.command("sysctl", "-w", "net.ipv4.ip_local_port_range=20000 20999")
        subprocess.run(limit, check=True, capture_output=True)
    arguments = [*TRAIN, *words(tmp_path, stages=1, iterations=20_000), "--keep-in-memory", "copies=2"]
    ranks = start_each(arguments, three[:2])
    own = [each for rank in ranks for each in family(rank.process.pid)]
    ports = [each.address[1] for each in listening(own) if each.family != socket.AF_UNIX]
    assert len(ports) > 4
    assert set(ports) - {29500} <= set(range(20_000, 21_000)), ports
    assert {"recycle: W1_0", "recycle: agent of W1_0"} <= titles(three[1])
    subprocess.run(three[1].command("pkill", "-TERM", "-f", "recycle: agent of W1_0"), check=True)
    assert ranks[1].ended() == 128 + signal.SIGTERM, ranks[1].output
    ranks[0].wait_for(": 1 of 2 servers")
    assert "W1_0 leaves: SIGTERM" in ranks[0].output
    # Nobody was surprised, and nothing was made again.
    assert "is made again" not in ranks[0].output
    assert "died" not in ranks[0].output
    tell_to_end(three[0])
    assert ranks[0].ended() == 128 + signal.SIGTERM, ranks[0].output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_run_that_is_told_to_end_makes_a_checkpoint_first(start, tmp_path, number):
    arguments = words(tmp_path, stages=1, iterations=20_000)
    run = start([*TRAIN, *arguments])
    run.wait_for("iteration 3/")
    assert "processes  pgrep -f 'recycle: W0_0( |$)' finds a server" in run.output
    run.process.send_signal(number)
    assert run.ended() == 128 + number, run.output
    said = re.search(r"recycle: told to end: training has ended after (\d+) iterations, with a checkpoint", run.output)
    assert said, run.output
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert saved.name == f"step-{int(said[1]):08d}"


def test_the_second_signal_ends_a_run_at_once(start, tmp_path):
    run = start([*TRAIN, *words(tmp_path, stages=1, iterations=20_000)])
    run.wait_for("iteration 3/")
    below = run.processes("recycle: W[01]_0")
    assert len(below) == 2
    for pid in below:
        send_signal(pid, signal.SIGSTOP)  # so that no next iteration comes
    run.process.send_signal(signal.SIGTERM)
    run.wait_for("again to end at once")
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 128 + signal.SIGTERM, run.output
    assert "recycle: SIGTERM: ended at once" in run.output
    wait_until(lambda: not any(map(is_running, below)))
