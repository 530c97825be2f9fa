import pytest

from recycle.errors import UserError
from recycle.megatron.flag.device.data_helpers import require_data_helpers, use_data_helpers

BUILT = "helpers_cpp.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def folder(tmp_path):
    """Where the data helpers of a source tree are that lies beside a script."""
    made = tmp_path / "megatron" / "core" / "datasets"
    made.mkdir(parents=True)
    (tmp_path / "megatron" / "__init__.py").touch()
    return made


def test_a_tree_without_data_helpers_is_refused(tmp_path, folder):
    with pytest.raises(UserError, match=f"{folder}: its data helpers are not built; run make -C {folder}"):
        require_data_helpers(tmp_path / "pretrain_gpt.py")
    (folder / BUILT).touch()
    require_data_helpers(tmp_path / "pretrain_gpt.py")


def test_what_has_a_makefile_is_built_as_ever(tmp_path, folder):
    assert use_data_helpers(tmp_path / "pretrain_gpt.py") == ""
    (folder / BUILT).touch()
    (folder / "Makefile").touch()
    assert use_data_helpers(tmp_path / "pretrain_gpt.py") == ""


def test_the_packages_data_helpers_are_taken_as_they_are(tmp_path, monkeypatch):
    from megatron.core.datasets import utils

    monkeypatch.setattr(utils, "compile_helpers", lambda: pytest.fail("it has no Makefile"))
    assert "has data helpers and no Makefile" in use_data_helpers(tmp_path / "pretrain_gpt.py")
    utils.compile_helpers()
