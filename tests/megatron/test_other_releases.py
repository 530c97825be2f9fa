"""What releases of Megatron differ in, tried on those that are not installed: scripts/test has each in a folder."""

import os

import pytest

from harness.nested_tests import named_tests, require_passed
from harness.paths import ROOT, python_path

OLDEST, NEWER = "0.16.1", ("0.18.2", "0.19.2")
NAMES = named_tests(
    *(
        f"tests/megatron/{each}"
        for each in ("shared/test_release.py", "flag/test_auxiliary_losses.py", "flag/test_command_line.py")
    )
)
TOOLS = named_tests("tests/test_benchmarks.py::test_what_is_not_installed_is_named")
RETURNS = "tests/megatron/flag/test_returns.py"
KILLS = named_tests(
    "tests/megatron/flag/test_delaying_layers.py",
    "tests/megatron/flag/test_sharded_optimizer.py::"
    "test_biases_of_experts_that_tensor_parallelism_does_not_split_count_in_the_norm_as_in_stock",
    "tests/megatron/flag/test_surviving.py::test_killed_in_the_middle_of_something[2:evaluation:2,1:forward:30]",
    f"{RETURNS}::test_a_server_of_each_stage_comes_back_in_turn_and_nothing_changes",
    f"{RETURNS}::test_who_comes_back_after_an_iteration_that_was_made_again_or_skipped_changes_nothing",
)

pytestmark = pytest.mark.timeout(1200)


def require_passed_on(release: str, *tests: str) -> None:
    """Have tests pass on a release."""
    folder = ROOT / f".megatron-{release}"
    if not (folder / "installed").exists():
        pytest.skip(f"megatron-core {release} is not in {folder.name}: scripts/test puts it there")
    require_passed(*tests, python_path=os.pathsep.join([str(folder), python_path()]))


@pytest.mark.parametrize("release", [OLDEST, *NEWER])
def test_names_and_options_are_those_of_the_table(release: str) -> None:
    require_passed_on(release, *NAMES)


@pytest.mark.long
def test_a_benchmark_names_the_training_code_that_the_oldest_release_lacks() -> None:
    require_passed_on(OLDEST, *TOOLS)


@pytest.mark.long
@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("release", NEWER)
def test_servers_die_and_come_back_and_nothing_changes(release: str, kill: str) -> None:
    require_passed_on(release, kill)
