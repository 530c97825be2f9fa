"""Puts JavaScript modules together into one script, so that a page of many modules is a single file.

Each module becomes a function with a scope of its own, whose result are its exports. Of the language's modules it knows
what the page needs: ``import { name, ... } from './module.js';`` and ``export`` before a class, a constant or a
function, both at the start of a line.
"""

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

IMPORT = re.compile(r"^import \{([\w\s,]+)\} from '\./(\w+)\.js';$", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:class|const|function) (\w+))", re.MULTILINE)
OTHER = re.compile(r"^\s*(?:import|export)\b.*", re.MULTILINE)


def link(modules: Mapping[str, str]) -> str:
    """One script that runs all modules, each after those that it imports from.

    Args:
        modules: the text of each module, by its name without ``.js``.

    Raises:
        ValueError: a module imports what there is not, or in a form that is not known here; or modules import from each
            other in a circle.
    """
    needs = {name: {source for _, source in IMPORT.findall(text)} for name, text in modules.items()}
    exports = {name: EXPORT.findall(text) for name, text in modules.items()}
    for name, text in modules.items():
        for names, source in IMPORT.findall(text):
            for each in _names(names):
                if each not in exports.get(source, ()):
                    raise ValueError(f"{name}.js imports {each} from {source}.js, which does not export it")
    parts = [_function(name, modules[name], exports[name]) for name in TopologicalSorter(needs).static_order()]
    return "(() => {\n'use strict';\n" + "".join(parts) + "})();"


def _function(name: str, text: str, exports: list[str]) -> str:
    body = IMPORT.sub(lambda match: f"const {{ {', '.join(_names(match[1]))} }} = {_variable(match[2])};", text)
    body = EXPORT.sub("", body)
    other = OTHER.search(body)
    if other:
        raise ValueError(f"{name}.js: {other[0].strip()!r} is no import or export of a known form")
    return f"const {_variable(name)} = (() => {{\n{body}return {{ {', '.join(exports)} }};\n}})();\n"


def _names(listed: str) -> list[str]:
    return [each.strip() for each in listed.split(",") if each.strip()]


def _variable(module: str) -> str:
    # No module can name it by accident.
    return f"$module_{module}"
