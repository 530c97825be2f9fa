"""The notebooks of examples/, executed by a real kernel."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: scripts/test does")
import nbformat  # noqa: E402 - comes with it

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))


def kinds(notebook):
    """What each cell has put out, by kind: how much of it comes at once differs."""
    found = [cell.get("outputs", ()) for cell in notebook.cells]
    return [{kind for each in outputs for kind in each.get("data", [each["output_type"]])} for outputs in found]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_carries_what_it_puts_out(tmp_path, path):
    notebook = nbformat.read(path, as_version=4)
    carried = kinds(notebook)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert carried == kinds(notebook), f"jupyter execute --inplace {path.name} renews them"
    assert any("image/svg+xml" in each for each in carried)
    assert (tmp_path / "plan.json").exists()
