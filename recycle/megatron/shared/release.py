"""The release of Megatron that is used: whether it is one that is known here, and where it has what differs.

One table for all releases has the functions of Megatron's that are replaced or relied on, and their parameters.
"""

import inspect
import re
import sys
from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from recycle.runtime.errors import RunError

TABLE = "megatron_functions.txt"


class Hook(NamedTuple):
    """A function of Megatron's.

    Attributes:
        module: where it is.
        name: what it is called there.
        parameters: the names of its parameters; those behind a * can only be given by name.
    """

    module: str
    name: str
    parameters: str


class MegatronRelease(NamedTuple):
    """A release of Megatron.

    Attributes:
        hooks: what is replaced or relied on in it.
        python: the oldest one that has all names which its training code imports.
    """

    hooks: tuple[Hook, ...]
    python: tuple[int, int] = (3, 11)


def _hooks(release: str) -> tuple[Hook, ...]:
    """Those of a release, such as 0.19."""
    found = []
    for row in (files(__package__) / TABLE).read_text().splitlines():
        if not row.startswith("#"):
            releases, module, name, parameters = f"{row} ".split(" ", 3)
            since, until = releases.split("-")
            if since <= release <= until:
                found.append(Hook(module, name, parameters.rstrip()))
    return tuple(found)


PYTHON = (3, 12)
_OF_0_16, _OF_0_17, _OF_0_18, _OF_0_19 = map(_hooks, ("0.16", "0.17", "0.18", "0.19"))

RELEASES: Mapping[str, MegatronRelease] = {
    "0.16.1": MegatronRelease(_OF_0_16),
    "0.17.1": MegatronRelease(_OF_0_17),
    "0.18.0": MegatronRelease(_OF_0_18, PYTHON),
    "0.18.2": MegatronRelease(_OF_0_18, PYTHON),
    "0.19.0": MegatronRelease(_OF_0_19, PYTHON),
    # What the source tree of tag core_v0.19.0 calls itself.
    "0.19.1": MegatronRelease(_OF_0_19, PYTHON),
    "0.19.2": MegatronRelease(_OF_0_19, PYTHON),
}


def find_release(script: Path) -> str | None:
    """The release of Megatron that a script will import, without importing it; None if that cannot be told.

    Newer ones cannot even be imported on each machine where the older ones can.

    Args:
        script: which will be run; Megatron may lie beside it.
    """
    file = find_in_megatron(script, "core/package_info.py")
    if file is None:
        return None
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) *= *['\"]?(\w*)", file.read_text(), re.M))
    if not {"MAJOR", "MINOR", "PATCH"} <= parts.keys():
        return None
    return f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}{parts.get('PRE_RELEASE', '')}"


def find_in_megatron(script: Path, name: str) -> Path | None:
    """The file or folder of Megatron's that a script will find, without importing anything; None if there is none.

    Args:
        script: as above; its folder takes the place of the first one where modules are looked for.
        name: of the file or folder, below ``megatron``.
    """
    found = PathFinder.find_spec("megatron", [str(script.resolve().parent), *sys.path[1:]])
    folders = () if found is None else found.submodule_search_locations or ()
    return next((path for path in (Path(each, name) for each in folders) if path.exists()), None)


def require_known_release() -> str:
    """Check every name of the table against the Megatron that is installed; give its release.

    Raises:
        RunError: the release is not in the table, or a name is not what the table says.
    """
    from megatron.core import __version__

    for hook in require_listed(__version__).hooks:
        found = parameters_of(hook)
        if found != hook.parameters:
            raise RunError(
                f"megatron-core {__version__}: {hook.module}.{hook.name} takes ({found}), and ({hook.parameters}) is "
                "expected: this is another source tree than the release's; take the release's own, or train with "
                "--pipeline-schedule stock"
            )
    return str(__version__)


def require_listed(release: str) -> MegatronRelease:
    """What the table has for a release.

    Args:
        release: its version; newer ones name the commit of the tree that they lie in behind a plus sign.

    Raises:
        RunError: it has nothing.
    """
    found = RELEASES.get(release.partition("+")[0])
    if found is None:
        *others, last = RELEASES
        raise RunError(
            f"megatron-core is {release}, and --pipeline-schedule recycle knows {', '.join(others)} and {last}: "
            "install one of these, or train with --pipeline-schedule stock"
        )
    return found


def module_with(name: str) -> Any:
    """The module where the installed release has a function of the table; None if it has none of this name.

    Raises:
        RunError: the release is not in the table.
    """
    from megatron.core import __version__

    hooks = require_listed(__version__).hooks
    return next((import_module(hook.module) for hook in hooks if hook.name == name), None)


def parameters_of(hook: Hook) -> str:
    """The parameters that the installed function has, in the words of the table.

    Raises:
        RunError: there is no such function.
    """
    try:
        function: Any = reduce(getattr, hook.name.split("."), import_module(hook.module))
    except (ImportError, AttributeError) as error:
        raise RunError(
            f"{hook.module}.{hook.name} is not there ({error}): install megatron-core 0.17.1 or newer, which carries "
            "megatron.training, or put the source tree of Megatron-LM 0.16.1 on PYTHONPATH"
        ) from error
    empty = inspect.Parameter.empty
    plain = [each.replace(annotation=empty, default=empty) for each in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(plain))[1:-1]
