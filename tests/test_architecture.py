"""The page on the architecture is true: its picture is of the imports, and the files that it names are there."""

import re
from pathlib import Path

import pytest

from scripts.make_map import PICTURE, draw, find_arrows, floors, reduced

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "internals" / "architecture.md"


def test_the_picture_is_of_the_imports_as_they_are():
    assert draw(find_arrows()) == PICTURE.read_text(), "differs; if that is meant, run python scripts/make_map.py"


def test_every_file_and_folder_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.read_text()))
    assert len(named) > 40
    folder = ROOT / "recycle"
    known = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    for name in sorted(named):
        found = any(each == name or each.endswith(f"/{name}") for each in known)
        assert found or (folder / name).is_dir() or (ROOT / name).exists() or any(folder.rglob(name)), name


def test_an_arrow_that_follows_from_two_others_is_left_out():
    arrows = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}
    assert reduced(arrows) == {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}
    assert floors(arrows) == [["a"], ["b"], ["c"]]


def test_a_circle_has_no_floors():
    with pytest.raises(ValueError, match="cycle"):
        floors({"a": frozenset("b"), "b": frozenset("a")})
