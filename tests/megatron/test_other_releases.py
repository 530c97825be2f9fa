"""What releases of Megatron differ in, tried on those that are not installed: scripts/test has each in a folder."""

import os
import subprocess
import sys

import pytest

from harness.paths import ROOT, python_path

OLDEST, NEWER = "0.16.1", ("0.18.2", "0.19.2")
NAMES = ("shared/test_release.py", "flag/test_auxiliary_losses.py", "flag/test_command_line.py")
KILLS = (
    "flag/test_delaying_layers.py",
    "flag/test_surviving.py::test_killed_in_the_middle_of_something[2:evaluation:2,1:forward:30]",
    "flag/test_returns.py::test_a_server_of_each_stage_comes_back_in_turn_and_nothing_changes",
    "flag/test_returns.py::test_an_iteration_that_megatron_makes_again_changes_nothing",
    "flag/test_returns.py::test_who_comes_back_after_an_iteration_that_was_made_again_or_skipped_changes_nothing",
)

pytestmark = pytest.mark.timeout(1200)


def require_passed(release: str, *tests: str) -> None:
    """Have tests pass on a release, in a process of their own: none can import two."""
    folder = ROOT / f".megatron-{release}"
    if not (folder / "installed").exists():
        pytest.skip(f"megatron-core {release} is not in {folder.name}: scripts/test puts it there")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), python_path()])}
    # It is no worker of these tests: it would take the undisturbed runs of whatever was tested on this machine before.
    variables.pop("PYTEST_XDIST_WORKER", None)
    ended = subprocess.run(
        [*words, *(f"tests/megatron/{each}" for each in tests)], env=variables, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]


@pytest.mark.parametrize("release", [OLDEST, *NEWER])
def test_names_and_options_are_those_of_the_table(release: str) -> None:
    require_passed(release, *NAMES)


def test_a_benchmark_names_the_training_code_that_the_oldest_release_lacks() -> None:
    require_passed(OLDEST, "../test_benchmarks.py::test_what_is_not_installed_is_named")


@pytest.mark.long
@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("release", NEWER)
def test_servers_die_and_come_back_and_nothing_changes(release: str, kill: str) -> None:
    require_passed(release, kill)
