"""Where pipelines are not alike a server has other peers for each of its chunks, and its death changes no bit."""

import msgspec
import pytest

from harness.examples import uneven_job
from harness.waiting import ForReturn, wait_between
from recycle.faults.menu import Kind
from recycle.job import Server
from recycle.plan.instruction import Op
from recycle.record.recording import DeathLine
from tests.survival.trained import MODEL, Trained, fault

ITERATIONS = 12


pytestmark = pytest.mark.usefixtures("short_text")


class Uneven(Trained):
    """Runs of two pipelines, of two servers and of three."""

    job = uneven_job()
    model = msgspec.structs.replace(MODEL, layers=4, exact=True)


@pytest.mark.long
def test_a_server_dies_and_comes_back_with_the_state_of_all_its_peers(tmp_path, monkeypatch):
    wait_between(ForReturn(Server(1, 1)), monkeypatch.setattr)
    reference = Uneven(tmp_path / "reference", iterations=ITERATIONS)
    # W0_0 and W0_1 hold one each of W1_1's two chunks.
    faults = fault(Kind.KILL, "W1_1", 3, Op.STEP), fault(Kind.JOIN, "W1_1", 4)
    run = Uneven(tmp_path / "run", *faults, iterations=ITERATIONS)
    assert run.error == "", run.story
    assert run.losses() == reference.losses(), run.story
    assert [len(each.servers) for each in run.views] == [5, 4, 5], run.story


def test_the_last_who_holds_a_chunk_takes_the_run_with_it(tmp_path):
    run = Uneven(tmp_path / "run", fault(Kind.KILL, "W1_1", 2), fault(Kind.KILL, "W0_0", 5))
    assert "no live server of chunk 1 is left" in run.error, run.story
    # Several servers tell of them.
    assert {each.server for each in run.of(DeathLine)} == {"W0_0", "W1_1"}
