"""The wheel and the source distribution, built and installed as a user gets them."""

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: scripts/test does")
from hatchling.builders.sdist import SdistBuilder  # noqa: E402 - only where it is there

from recycle.cli.verbs import PACKAGES, group  # noqa: E402 - as above

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    return Path(path)


def metadata_of(wheel):
    """What a package's page is made of."""
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_an_installed_wheel_plans_and_draws(wheel, tmp_path):
    site = tmp_path / "site"
    install = ["pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site, wheel]
    subprocess.run([sys.executable, "-m", *install], check=True)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import recycle, runpy; "
    code += "assert recycle.__file__.startswith(sys.path[0]); sys.argv = ['recycle', *sys.argv[1:]]; "
    code += f"runpy.run_path({str(site / 'bin' / 'recycle')!r}, run_name='__main__')"

    def call(*words):
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *words], check=True, cwd=tmp_path, capture_output=True, text=True, env={}
        ).stdout

    call("plan", "-D", "2", "-P", "2", "-M", "2", "--moves", "10", "-o", "plan.json")
    call("show", "plan.json", "--html", "plan.html", "--svg", "plan.svg")
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    assert (tmp_path / "plan.html").stat().st_size > 10_000


def test_the_wheel_says_what_it_is(wheel):
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    data = metadata_of(wheel)
    assert data["License-Expression"] == "Apache-2.0"
    assert "Operating System :: POSIX :: Linux" in data.get_all("Classifier")
    assert any(each.endswith("licenses/LICENSE") for each in names)
    assert "recycle/py.typed" in names


def test_the_page_of_the_package_has_readme_without_a_dead_link(wheel):
    data = metadata_of(wheel)
    page = data.get_payload()
    assert data["Description-Content-Type"] == "text/markdown"
    assert "check a job (`docs/howto/doctor.md`)" in page
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    named = re.findall(r"\(`([\w./-]+)`\)", page)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_whatever_an_installation_without_extras_lacks_is_named_when_it_is_needed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {re.match(r"[\w-]+", each)[0] for name in ("plan", "train") for each in extras[name]} == {*PACKAGES.values()}


def test_the_source_distribution_has_what_a_reader_needs(tmp_path):
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        names = {"/".join(Path(each).parts[1:]) for each in archive.getnames()}
    assert names >= {
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
        "README.md",
        "hatch_build.py",
        "docs/internals/planner.md",
        "scripts/demo",
    }


def test_the_image_is_built_from_what_it_copies_and_its_commands_exist(tmp_path, monkeypatch):
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    sent = {each[1:] for each in (ROOT / ".dockerignore").read_text().splitlines() if each.startswith("!")}
    copied = set()
    for line in lines:
        words = line.split()
        if words[:1] == ["COPY"]:
            *sources, target = words[1:]
            for source in sources:
                place = tmp_path / target.lstrip("/")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, place)
                copied.add(source)
    assert copied == sent
    (built,) = builders.WheelBuilder(str(tmp_path / "src")).build(directory=str(tmp_path))
    (asked,) = (each for each in lines if each.startswith("RUN pip install"))
    extras = set(re.search(r"\[(.*)\]", asked)[1].split(","))
    assert extras <= set(metadata_of(built).get_all("Provides-Extra"))
    assert (tmp_path / re.search(r"-c /(\S+)", asked)[1]).exists()
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line.partition(" recycle ")[2]) for line in lines if line.startswith("#   docker run")]
    assert len(commands) == 2
    for verb, *arguments in commands:
        group.get_command(click.Context(group), verb).make_context(verb, arguments)
