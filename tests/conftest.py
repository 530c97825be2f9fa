"""What all tests share: golden files with a switch to renew them, and a way to call the command line."""

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from harness.examples import paper_plan
from harness.shared_runs import SharedRuns
from recycle.cli import main
from recycle.plan.document import save_plan

# Tests assert behaviour and no clock: a loaded machine is slow. What decides about a change is the same on every
# machine, so examples are drawn by a fixed seed; `pytest --hypothesis-profile search` draws new ones.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "recycle", deadline=None, derandomize=True, database=None, suppress_health_check=SLOW
)
hypothesis.settings.register_profile("search", deadline=None, print_blob=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("recycle")

ONE_IN = 40
"""Of the long tests, so many times fewer are run for each commit."""

GOLDENS = Path(__file__).parent / "goldens"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-goldens", action="store_true", help="write the golden files instead of comparing")
    parser.addoption(
        "--sample", metavar="SEED", help=f"of the tests marked long, run one in {ONE_IN}, drawn by this seed"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests that are not drawn."""
    seed = config.getoption("--sample")
    if seed is None:
        return

    def is_run(item: pytest.Item) -> bool:
        return item.get_closest_marker("long") is None or not random.Random(f"{seed} {item.nodeid}").randrange(ONE_IN)

    config.hook.pytest_deselected(items=[each for each in items if not is_run(each)])
    items[:] = [each for each in items if is_run(each)]


def pytest_configure() -> None:
    """Until all tests are imported there is no garbage to speak of, and looking for it is a fifth of that time.

    What tests have left must not be freed in what is forked: its threads are missing there, and a destructor that waits
    for one ends the process.
    """
    gc.disable()
    os.register_at_fork(after_in_child=gc.freeze)


def pytest_collection_finish() -> None:
    """Whatever is imported by now stays: collections of garbage need not look at it, nor copy it in what is forked."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/goldens/<name>, or write it there with --renew-goldens."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--renew-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; make it with pytest --renew-goldens and read it"
        assert text == path.read_text(), f"{path} differs; if that is meant, renew it with pytest --renew-goldens"

    return compare


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in a terminal of 100 columns; gives exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["recycle", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main(goes_on=True)
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def ran(run: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """The same of what has to end well; gives standard output."""

    def call(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert status == 0, out + err
        return out

    return call


@pytest.fixture
def refused(run: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """The same of what cannot be used; gives the one line that says so."""

    def call(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), out + err
        return err

    return call


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> SharedRuns:
    """Runs that are made once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    # Each worker has a folder of its own in that of the session.
    return SharedRuns((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "shared")


@pytest.fixture(scope="module")
def short_text() -> Iterator[None]:
    """Runs that are given no text read a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recycle.megatron.gpt.forward.standard_library", lambda: bytes(range(256)) * 100)
        yield


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """The file of a legal plan."""
    path = tmp_path / "plan.json"
    save_plan(paper_plan(), path)
    return path
