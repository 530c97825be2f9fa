"""The licence of everything that recycle needs to run: ``python -m scripts.list_licences``; 1 if one is copyleft.

Packages are those that are installed here, from recycle's own requirements down, of all extras that users install.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE, EXTRAS = "recycle-pipeline", ("plan", "train")
COPYLEFT = re.compile(r"\b[AL]?GPL|GNU|\bMPL|Mozilla|\bEUPL|\bCDDL|\bEPL|\bSSPL", re.IGNORECASE)


def licence_of(found: Distribution) -> str:
    """What a package says of its licence, from the most exact field on; of a whole text its first line."""
    fields = found.metadata
    for each in fields.get_all("License-Expression") or []:
        return str(each)
    said = [each for each in fields.get_all("Classifier") or [] if each.startswith("License :: ")]
    if said:
        return ", ".join(each.rpartition(" :: ")[2] for each in said)
    return " ".join(fields.get_all("License") or []).strip().partition("\n")[0]


def needed(
    package: str, extras: tuple[str, ...], find: Callable[[str], Distribution] = distribution
) -> Mapping[str, str]:
    """The licences of all that a package needs, by name; what is not installed is for another system."""
    licences: dict[str, str] = {}
    left = list(_requirements(find(package), extras))
    while left:
        each = left.pop()
        name = canonicalize_name(each.name)
        if name in licences:
            continue
        try:
            found = find(each.name)
        except PackageNotFoundError:
            continue
        licences[name] = licence_of(found)
        left += _requirements(found, tuple(each.extras))
    return dict(sorted(licences.items()))


def _requirements(found: Distribution, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for each in map(Requirement, found.requires or ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def main() -> int:
    """Print a table, and say which licence cannot go with recycle's."""
    licences = needed(PACKAGE, EXTRAS)
    for name, licence in licences.items():
        print(f"{name:28} {licence}")
    bad = [name for name, licence in licences.items() if not licence or COPYLEFT.search(licence)]
    if bad:
        print(f"copyleft, or of no known licence: {', '.join(bad)}; recycle is Apache-2.0", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
