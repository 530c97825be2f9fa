"""What tests of the flag train on."""

import pytest

from harness.flag_runs import make_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data") / "text")
