from xml.etree import ElementTree as Xml

import pytest

from harness.recordings import write_events
from recycle.record.recording import ViewLine
from tests.record.test_history import FOUR, HEAD, death, view
from tests.record.test_totals import iteration


def write(folder, views, steps, shift=0.0):
    """A run: who is in each view and where it begins, and the loss of each step."""

    files = {server: [HEAD] for server in FOUR} | {"launcher": [HEAD, *views]}
    changes = [line for line in views if isinstance(line, ViewLine)]
    for number, line in enumerate(changes):
        end = changes[number + 1].step if number + 1 < len(changes) else steps
        for step in range(line.step, end):
            for server in line.servers:
                losses = [5.0 - step, 5.0 - step + shift] if server[-1] == "1" else []
                files[server].append(iteration(server, step, losses, epoch=line.epoch))
    write_events(folder, files)
    return folder


@pytest.fixture
def disturbed(tmp_path):
    views = [view(0, FOUR, 0), death("W1_1", 1), view(1, FOUR[:3], 1), view(2, FOUR, 2, joined=["W1_1"])]
    return write(tmp_path / "disturbed", views, 4, shift=1e-6)


def test_two_runs_are_drawn_and_their_largest_difference_is_printed(run, disturbed, tmp_path):
    other = write(tmp_path / "undisturbed", [view(0, FOUR, 0)], 5)
    status, out, err = run("show", disturbed, "--against", other, "--losses", tmp_path / "a.svg")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "largest difference 2.5e-07 at iteration 4 over 4 iterations"
    texts = {each.text for each in Xml.fromstring((tmp_path / "a.svg").read_text()).iter()}
    assert {"disturbed", "undisturbed", "W1_1 died", "W1_1 is back"} <= texts


def test_a_run_alone(run, disturbed, tmp_path):
    status, out, _ = run("show", disturbed, "--losses", tmp_path / "a.svg")
    assert (status, out) == (0, f"written to {tmp_path / 'a.svg'}\n")


def test_runs_without_a_common_iteration_end_with_status_1(run, tmp_path):
    one = write(tmp_path / "a" / "run", [view(0, FOUR, 0)], 2)
    other = write(tmp_path / "b" / "run", [view(0, FOUR, 2)], 4)
    status, _, err = run("show", one, "--against", other, "--losses", tmp_path / "a.svg")
    assert status == 1
    assert "no iteration in common" in err
    assert len(err.splitlines()) == 1


def test_a_directory_without_losses_is_one_line(run, refused, tmp_path):
    err = refused("show", write(tmp_path / "run", [view(0, FOUR, 0)], 0), "--losses", tmp_path / "a.svg")
    assert "no losses here" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "a.svg").exists()
    assert run("show", tmp_path / "nowhere", "--losses", tmp_path / "a.svg")[0] == 2
