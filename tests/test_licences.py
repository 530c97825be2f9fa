from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from types import SimpleNamespace

import pytest

from scripts import list_licences
from scripts.list_licences import EXTRAS, PACKAGE, licence_of, needed


def package(requires=(), **fields):
    metadata = Message()
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            metadata[name.replace("_", "-")] = each
    return SimpleNamespace(requires=list(requires), metadata=metadata)


def test_extras_are_those_of_the_package():
    assert {*EXTRAS} <= {*metadata(PACKAGE).get_all("Provides-Extra")}


def test_nothing_that_recycle_needs_is_copyleft(capsys):
    licences = needed(PACKAGE, EXTRAS)
    assert {"msgspec", "torch", "ortools", "pyeclib"} <= licences.keys()
    assert list_licences.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(licences)


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT", "License": "GPL"}, "MIT"),
        ({"Classifier": ["Topic :: Software", "License :: OSI Approved :: MIT License"]}, "MIT License"),
        ({"License": "A licence of our own\n\nwith all its text"}, "A licence of our own"),
        ({}, ""),
    ],
)
def test_the_most_exact_field_counts(fields, licence):
    assert licence_of(package(**fields)) == licence


@pytest.mark.parametrize("licence", ["GPL-2.0-or-later", "LGPLv3+", "AGPL-3.0", "MPL-2.0", "EUPL-1.2", ""])
def test_a_licence_that_does_not_go_with_recycles_is_found_however_deep(licence, monkeypatch, capsys):
    packages = {
        PACKAGE: package(['middle[more]; extra == "train"', 'never; extra == "test"']),
        "middle": package(["Deep.Down", 'elsewhere; extra == "more"', "middle"], License_Expression="MIT"),
        "Deep.Down": package(License_Expression=licence),
    }

    def find(name):
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    found = needed(PACKAGE, EXTRAS, find)
    assert found == {"deep-down": licence, "middle": "MIT"}
    monkeypatch.setattr(list_licences, "needed", lambda *_: found)
    assert list_licences.main() == 1
    assert "copyleft, or of no known licence: deep-down" in capsys.readouterr().err
