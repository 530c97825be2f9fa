"""The page's script: its modules put together, and no name in them that is neither declared nor imported."""

import re

import pytest

from recycle.view.html import link, read_modules

KEYWORDS = """
as async await break case catch class const continue default delete do else export extends false finally for from
function get if import in instanceof let new null of return set static super switch this throw true try typeof undefined
void while yield
"""
BROWSER = """
Blob Boolean Error Float32Array Float64Array Infinity Int32Array JSON Map Math NaN Number Object Promise ResizeObserver
Set String URL URLSearchParams Uint32Array Uint8Array atob clearTimeout document fetch getComputedStyle history
location matchMedia parseInt performance requestAnimationFrame setTimeout window
"""
NAME = r"[A-Za-z_$][\w$]*"
COMPUTED = re.compile(r"\$\{([^}]*)\}")
FRAME = {"head": "export const one = 1;\n", "main": "import { one } from './head.js';\nwindow.seen = one;\n"}


def plain(text):
    """A module's text without comments, patterns and what stands in strings, but with what templates compute."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"(?<=[(=,] )/(?:\\.|\[[^]]*\]|[^/\n])+/\w*|(?<=\()/(?:\\.|\[[^]]*\]|[^/\n])+/\w*", "''", text)
    text = re.sub(r"`([^`]*)`", lambda found: f"({' , '.join(COMPUTED.findall(found[1]))})", text)
    return re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", text)


def free_names(text):
    """The names that a module uses without declaring or importing them, near enough: declared is declared anywhere."""
    text = plain(text).replace("...", " ")
    bound = re.findall(rf"\b(?:const|let|import)\s+(\{{[^}}]*\}}|\[[^]]*\]|{NAME})", text)
    bound += re.findall(rf"\b(?:class|function)\s+({NAME})", text)
    bound += re.findall(rf"({NAME})\s*=>", text)
    bound += re.findall(r"\(((?:[^()]|\([^()]*\))*)\)\s*=>", text)
    bound += re.findall(rf"\bfunction\s+{NAME}\(([^()]*)\)", text)
    bound += re.findall(rf"^  (?:get |\*)?(?!if|for|while){NAME}\(([^()]*)\) \{{$", text, re.MULTILINE)
    declared = set(re.findall(NAME, " ".join(bound)))
    used = set(re.findall(rf"(?<![\w$.])({NAME})(?![\w$]|\s*:)", text))
    methods = set(re.findall(rf"^  (?:get |\*)?({NAME})\([^()]*\) \{{$", text, re.MULTILINE))
    return used - declared - methods - set(f"{KEYWORDS} {BROWSER}".split())


@pytest.mark.parametrize("name", read_modules())
def test_every_name_of_a_module_is_declared_or_imported(name):
    assert free_names(read_modules()[name]) == set()


def test_a_name_that_is_not_imported_is_found():
    for name, text in read_modules().items():
        for names in re.findall(r"^import \{([^}]*)\}.*\n", text, re.MULTILINE):
            without = text.replace(f"{{{names}}}", "{ }", 1)
            assert free_names(without) == {each.strip() for each in names.split(",") if each.strip()}, name


def test_modules_run_behind_those_that_they_import_from():
    script = link(dict(reversed(FRAME.items())))
    assert script.index("const one = 1") < script.index("window.seen")
    assert script.index("'use strict'") < script.index("const one = 1")
    assert "import" not in script
    assert "export" not in script


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("import { two } from './head.js';\n", "does not export it"),
        ("import { one } from './tail.js';\n", "does not export it"),
        ("import one from './head.js';\n", "no import or export of a known form"),
        ("export { one };\n", "no import or export of a known form"),
    ],
)
def test_what_cannot_be_imported_is_refused(main, message):
    with pytest.raises(ValueError, match=message):
        link(FRAME | {"main": main})


def test_modules_that_import_from_each_other_are_refused():
    one = "import { b } from './two.js';\nexport const a = 1;\n"
    two = "import { a } from './one.js';\nexport const b = 1;\n"
    with pytest.raises(ValueError, match="cycle"):
        link({"one": one, "two": two})
