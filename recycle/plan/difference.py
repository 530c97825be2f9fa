"""What differs between two plans, field by field and instruction by instruction."""

import difflib
from typing import Any

import msgspec

from recycle.job import Server
from recycle.plan.document import document_of
from recycle.plan.plan import Plan


class Difference(msgspec.Struct, frozen=True):
    """How one plan differs from another.

    Attributes:
        fields: (name, value in the first, value in the second) of every field beside the programs that differs.
        programs: per server whose program differs, the lines of a unified diff of its instructions.
    """

    fields: tuple[tuple[str, Any, Any], ...]
    programs: dict[Server, tuple[str, ...]]

    def __bool__(self) -> bool:
        return bool(self.fields or self.programs)


def compare_plans(first: Plan, second: Plan) -> Difference:
    """Compare two plans; a server that only one of them has counts as an empty program in the other."""
    fields = []
    left, right = _flatten(first), _flatten(second)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            fields.append((name, left.get(name), right.get(name)))
    programs = {}
    for server in sorted(first.programs.keys() | second.programs.keys()):
        before, after = first.programs.get(server, ()), second.programs.get(server, ())
        if before != after:
            lines = difflib.unified_diff(list(map(str, before)), list(map(str, after)), n=1, lineterm="")
            programs[server] = tuple(line for line in lines if not line.startswith(("---", "+++")))
    return Difference(tuple(fields), programs)


def _flatten(plan: Plan) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{prefix}.{key}" if prefix else key, each)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            for place, each in enumerate(value):
                walk(f"{prefix}[{place}]", each)
        else:
            flat[prefix] = value

    walk("", msgspec.to_builtins(document_of(plan)))
    return flat
