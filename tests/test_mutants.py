import ast
from pathlib import Path

from scripts.mutants import ROOT, draw, mutants, near


def test_a_seed_draws_mistakes_of_all_rooms_each_of_which_is_other_python():
    drawn = draw(30, seed=7)
    assert drawn == draw(30, seed=7) != draw(30, seed=8)
    rooms = {each.name for each in (ROOT / "recycle").iterdir() if each.is_dir() and any(each.rglob("*.py"))}
    assert {each.path.parts[1] for each in drawn} >= rooms
    for each in drawn:
        content = (ROOT / each.path).read_bytes()
        assert ast.dump(ast.parse(each.change(content))) != ast.dump(ast.parse(content)), each.describe()


def test_every_kind_of_mistake_is_known():
    found = [each.describe() for each in mutants(Path("recycle/control/membership/messages.py"))]
    for kind in ("(not (", "->  pass", "->  return None", "!=", "->  True", "62  ->  63"):
        assert any(kind in each.partition("->")[2] or kind in each for each in found), kind


def test_the_file_that_mirrors_another_comes_first_and_then_those_that_import_it():
    first, *others = near(Path("recycle/plan/timing.py"))
    assert first == "tests/plan/test_timing.py"
    assert others[-1] == "tests/plan"
    assert near(Path("recycle/cli/run/choices.py"))
