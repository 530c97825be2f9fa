"""The page's script: its modules put together, and no name in them that is neither declared nor imported."""

import re

import pytest

from recycle.view.html import MODULES, PAGE, script

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
IMPORT = re.compile(r"^import \{([^}]*)\} from '\./(\w+)\.js';$", re.MULTILINE)
DECLARED = re.compile(rf"^(?:export )?(?:async )?(?:class|const|function|let) ({NAME})", re.MULTILINE)
TEXTS = {name: (PAGE / f"{name}.js").read_text() for name in MODULES}


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


@pytest.mark.parametrize("name", MODULES)
def test_every_name_of_a_module_is_declared_or_imported(name):
    assert free_names(TEXTS[name]) == set()


def test_a_name_that_is_not_imported_is_found():
    for name, text in TEXTS.items():
        for names in re.findall(r"^import \{([^}]*)\}.*\n", text, re.MULTILINE):
            without = text.replace(f"{{{names}}}", "{ }", 1)
            assert free_names(without) == {each.strip() for each in names.split(",") if each.strip()}, name


def test_every_module_is_in_the_script_behind_those_that_it_imports_from():
    assert {each.name for each in PAGE.iterdir() if each.name.endswith(".js")} == {f"{name}.js" for name in MODULES}
    for place, name in enumerate(MODULES):
        for names, source in IMPORT.findall(TEXTS[name]):
            assert source in MODULES[:place], f"{name} imports from {source}"
            for each in filter(None, map(str.strip, names.split(","))):
                assert re.search(rf"^export (?:class|const|function) {each}\b", TEXTS[source], re.MULTILINE), each
    assert not re.search(r"^\s*(?:import|export)\b", script(), re.MULTILINE)


def test_no_two_modules_have_a_name_in_common():
    declared = [each for text in TEXTS.values() for each in DECLARED.findall(text)]
    assert len(declared) > 100
    assert len(declared) == len(set(declared))
