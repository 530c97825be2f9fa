"""Files that lie: each ends in one line and the exit status 1 or 2, and takes what its own size is worth."""

import json
import os
import resource
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.examples import paper_plan
from recycle.cli.watch import watch_run
from recycle.errors import UserError
from recycle.files import LARGEST, from_json, read_bytes
from recycle.kinds import JOB, read_toml
from recycle.plan.document import save_plan
from recycle.record.recording import PLAN, EvaluationLine, ProcessLine
from tests.record.test_following import append
from tests.view.disturbed import write_disturbed

Run = Callable[..., tuple[int, str, str]]
VERBS = [["check"], ["show"], ["explain"], ["show", "--csv", "-"], ["plan", "-o", "out.json"]]
MEMORY = 1 << 30
"""Bytes that a file of some kilobytes may have a verb take, at the very most."""


@contextmanager
def little_memory() -> Iterator[None]:
    """Within the block, this process gets no more than that."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(run: Run, words: list[str]) -> str:
    """What is said of something that cannot be used."""
    with little_memory():
        status, _, err = run(*words)
    assert (status in (1, 2), err.count("\n")) == (True, 1), (status, err[-2000:])
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    save_plan(paper_plan(), path)
    return json.loads(path.read_bytes())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, plan: dict[str, Any], **job: object) -> Path:
    path.write_text(json.dumps({**plan, "job": {**plan["job"], **job}}))
    return path


UNEVEN = """
[[layout]]
micro_batches = 2
servers = [{chunks = [0]}, {chunks = [1]}]
[[layout]]
micro_batches = 2
servers = [{chunks = [0, 1]}]
"""

LIES = {
    "pipelines": {"pipelines": 1_000_000},
    "pipelines and fewer tasks": {"pipelines": 800_000, "micro_batches": 1},
    "micro-batches": {"micro_batches": 10_000_000},
    "micro-batches that could be planned": {"micro_batches": 300_000},
    "everything": {"pipelines": 10**12, "micro_batches": 10**12},
    "digits": {"pipelines": 10**40},
}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("lie", LIES)
def test_a_job_that_is_larger_than_its_plan_is_refused(run, here, plan, verb, lie) -> None:
    path = write(here / "plan.json", plan, **LIES[lie])
    err = refused(run, [*verb, str(path)])
    assert str(path) in err


@pytest.mark.parametrize("chunks", [[10**9], [-1], [10**30], []])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_chunks_of_a_layout_that_the_model_has_not_are_refused(run, here, verb, chunks) -> None:
    (here / "job.toml").write_text(UNEVEN)
    assert run("plan", "job.toml", "-o", "plan.json")[0] == 0
    plan = json.loads((here / "plan.json").read_bytes())
    plan["job"]["layout"][1]["servers"][0]["chunks"] = chunks
    (here / "plan.json").write_text(json.dumps(plan))
    refused(run, [*verb, "plan.json"])


@pytest.mark.parametrize("form", ["interleaved:999", "consecutive:999"])
def test_a_short_form_of_millions_of_chunks_is_refused(run, here, form) -> None:
    (here / "job.toml").write_text(f'pipelines = 2\nstages = 9999\nmicro_batches = 1\nplacement = "{form}"\n')
    refused(run, ["plan", "job.toml", "-o", "plan.json"])


DEEP = {
    "a key": b".".join([b"a"] * 50_000) + b" = 1",
    "a table": b"[" + b".".join([b"a"] * 50_000) + b"]",
    "tables": b"[[" + b" . ".join([b'"a"'] * 50_000) + b"]]",
    "inline": b"x = {" + b".".join([b"'a b$'"] * 50_000) + b" = 1}",
    "brackets": b"a = " + b"[" * 100_000,
}


@pytest.mark.parametrize("words", [["plan", "-o", "out.json"], ["check"], ["explain"], ["catalogue", "-o", "c.zip"]])
@pytest.mark.parametrize("deep", DEEP)
def test_a_file_of_toml_whose_keys_are_deep_is_refused(run, here, words, deep) -> None:
    (here / "job.toml").write_bytes(DEEP[deep])
    refused(run, [*words, "job.toml"])


def test_what_only_looks_like_a_deep_key_is_read() -> None:
    text = "1.2.3.4 " * 99 + "x" * 100_000
    assert read_toml(f'name = "{text}"  # {"a.b " * 200}'.encode(), JOB) == {"name": text}


CONTENTS = {
    "nested": b"[" * 200_000,
    "nested in a field": b'{"format": "recycle plan", "version": 1, "job": ' + b'{"a":' * 100_000,
    "empty": b"",
    "of another release": b'{"format": "recycle plan", "version": 99}',
    "nothing": b"\0" * 1000,
    "long number": b'{"format": "recycle plan", "version": ' + b"9" * 10_000 + b"}",
    "utf-16": b"\xff\xfe{",
}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_no_plan_is_refused(run, here, verb, content) -> None:
    (here / "plan.json").write_bytes(CONTENTS[content])
    assert "plan.json: " in refused(run, [*verb, "plan.json"])


@pytest.mark.parametrize("key", ["job", "programs", "pipelines", "W0_0"])
def test_a_key_that_is_given_twice_is_refused(run, here, plan, key) -> None:
    text = json.dumps(plan)
    at = text.index(f'"{key}": ')
    _, end = json.JSONDecoder().raw_decode(text, at + len(key) + 4)
    (here / "plan.json").write_text(f"{text[:end]}, {text[at:end]}{text[end:]}")
    assert f"key '{key}' is given twice" in refused(run, ["check", "plan.json"])


def test_digits_of_other_alphabets_name_no_server(run, here, plan) -> None:
    text = json.dumps(plan, ensure_ascii=False).replace("W0_0", "W\u0660_0")
    (here / "plan.json").write_text(text)
    assert "W<pipeline>_<stage>" in refused(run, ["check", "plan.json"])


@pytest.mark.parametrize(
    "words", [["check"], ["plan", "--dead", "W0_0", "--catalogue"], ["plan"], ["watch"], ["explain"], ["show"]]
)
def test_what_is_no_file_ends_too(run, here, words) -> None:
    os.mkfifo(here / "pipe")
    refused(run, [*words, "pipe"])


def test_a_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recycle.files.LARGEST", 1 << 20)
    with pytest.raises(UserError, match="/dev/zero: it has more than"):
        read_bytes(Path("/dev/zero"))
    assert LARGEST <= MEMORY / 2


def test_of_a_file_that_is_too_large_nothing_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("recycle.files._PIECE", -1)  # all of it
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(UserError, match="large: it has more than"):
        read_bytes(tmp_path / "large")


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"all of it")
    os.close(writer)
    assert read_bytes(Path(f"/dev/fd/{reader}")) == b"all of it"
    os.close(reader)


# Catalogues.


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    from recycle.cli.verbs import group

    path = tmp_path_factory.mktemp("catalogue") / "c.zip"
    group(["catalogue", "-D", "2", "-P", "2", "-M", "4", "--failures", "1", "-o", str(path)], standalone_mode=False)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def with_job(members: dict[str, bytes], **job: object) -> dict[str, bytes]:
    index = json.loads(members["index.json"])
    return {**members, "index.json": json.dumps({**index, "job": {**index["job"], **job}}).encode()}


LOOK = ["plan", "--dead", "W0_0", "-o", "out.json", "--catalogue"]


def test_the_catalogue_itself_is_used(run, here, members) -> None:
    with little_memory():
        assert run(*LOOK, pack(here / "c.zip", members))[0] == 0


@pytest.mark.parametrize("lie", LIES)
def test_a_catalogue_whose_job_is_larger_than_its_plans_is_refused(run, here, members, lie) -> None:
    refused(run, [*LOOK, str(pack(here / "c.zip", with_job(members, **LIES[lie])))])


@pytest.mark.parametrize("name", ["index.json", "references", "plans/1-0"])
def test_a_member_that_unpacks_to_far_more_is_refused(run, here, members, name) -> None:
    refused(run, [*LOOK, str(pack(here / "c.zip", {**members, name: bytes(400_000_000)}))])


def test_a_program_that_unpacks_to_far_more_is_refused(run, here, members) -> None:
    packed = msgspec.msgpack.decode(members["plans/1-0"])
    packer = zlib.compressobj(9)
    bomb = packer.compress(b"0F0.0 " * 60_000_000) + packer.flush()
    packed["programs"] = dict.fromkeys(packed["programs"], bomb)
    lying = {**members, "plans/1-0": msgspec.msgpack.encode(packed)}
    refused(run, [*LOOK, str(pack(here / "c.zip", lying, zipfile.ZIP_STORED))])


def test_an_index_that_names_another_vectors_plan_is_refused(run, here, members) -> None:
    lying = {**members, "plans/1-0": members["plans/0-1"]}
    assert "this is another plan than the index says" in refused(run, [*LOOK, str(pack(here / "c.zip", lying))])


@pytest.mark.parametrize("entries", [[], "twice", "long"])
def test_an_index_without_the_plan_for_all_servers_or_with_two_is_refused(run, here, members, entries) -> None:
    index = json.loads(members["index.json"])
    known = index["entries"]
    index["entries"] = {"twice": [*known, known[0]], "long": [{**each, "counts": [0]} for each in known]}.get(
        str(entries), []
    )
    lying = {**members, "index.json": json.dumps(index).encode()}
    assert "its index has no plan for all" in refused(run, [*LOOK, str(pack(here / "c.zip", lying))])


@pytest.mark.parametrize("change", ["encrypted", "method", "version", "size", "offset"])
def test_what_the_archive_says_of_a_member_may_be_wrong(run, here, members, change) -> None:
    content = bytearray(pack(here / "c.zip", members).read_bytes())
    at, step = 0, {"encrypted": (8, 6), "method": (10, 8), "version": (6, 4), "size": (24, 22), "offset": (42, 26)}
    while (at := content.find(b"PK\x01\x02", at + 1)) >= 0:
        content[at + step[change][0]] ^= 0x41 if change == "encrypted" else 0x7F
    at = -1
    while (at := content.find(b"PK\x03\x04", at + 1)) >= 0:
        content[at + step[change][1]] ^= 0x41 if change == "encrypted" else 0x7F
    (here / "c.zip").write_bytes(content)
    with little_memory():
        status, _, err = run(*LOOK, "c.zip")
    assert (status, err.count("\n")) in ((2, 1), (0, 0)), err


# Any field of a plan, with any of the values that lies are made of.

VALUES: list[Any] = [0, -1, 2**31, 2**63, 2**64, 10**12, 1e308, "", "\0", "W0_0", "W\u0660_0", None, True, [], {}, [[]]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number in range(min(len(value), 3)):
            yield from places(value[number], (*path, number))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_field_says_it_is_an_answer_or_one_line(run, tmp_path, plan, data) -> None:
    changed = json.loads(json.dumps(plan))
    where = data.draw(st.sampled_from([*places(changed)][1:]))
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = data.draw(st.sampled_from(VALUES))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(changed))
    verb = data.draw(st.sampled_from([["check"], ["show"], ["explain"], ["show", "--csv", "-"]]))
    with little_memory():
        status, _, err = run(*verb, path)
    assert status in (0, 1, 2), err
    assert status != 2 or err.count("\n") == 1, err


# Any field of a recording, likewise.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = write_disturbed(tmp_path_factory.mktemp("recorded"))
    save_plan(paper_plan(failed=()), folder / PLAN)
    process = ProcessLine("launcher", 1, "here", zero=1.7e9, time=1.7e9, iterations=4)
    append(folder / "events" / "launcher.jsonl", process, EvaluationLine("W0_3", 2, [4.0, 5.0]))
    return {
        file.name: [json.loads(line) for line in file.read_bytes().splitlines()]
        for file in (folder / "events").iterdir()
    }


def write_recorded(folder: Path, recorded: dict[str, list[dict[str, Any]]]) -> Path:
    (folder / "events").mkdir(exist_ok=True)
    save_plan(paper_plan(failed=()), folder / PLAN)
    for name, lines in recorded.items():
        (folder / "events" / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


LOOKS = [["show"], ["show", "--json"], ["show", "--list"], ["show", "--html", "-"], ["show", "--losses", "-"]]


def looked_at(run: Run, folder: Path, look: list[str]) -> tuple[int, str]:
    """The status with which a verb ends, and what it says of what it cannot use."""
    with little_memory():
        if look != ["watch"]:
            status, _, err = run(look[0], folder, *look[1:])
            return status, err
        try:
            for name, route in watch_run(folder).items():
                assert route.answer({}), name
        except UserError as error:
            return 2, f"{error}\n"
        return 0, ""


LYING_LINES = [
    ("launcher.jsonl", "view", {"throughput": 0}),
    ("launcher.jsonl", "view", {"throughput": 1e-320}),
    ("launcher.jsonl", "view", {"throughput": -1e308}),
    ("launcher.jsonl", "view", {"layout": []}),
    ("launcher.jsonl", "process", {"ahead": 1e308}),
    ("launcher.jsonl", "process", {"name": "W0_0#x"}),
    ("W0_3.jsonl", "iteration", {"losses": [1e308, 1e308]}),
    ("W0_0.jsonl", "span", {"end": 1e308}),
    ("W0_0.jsonl", "span", {"iteration": 1 << 31}),
    ("W0_0.jsonl", "recovery", {"resumed": -1e308}),
]


@pytest.mark.parametrize(("name", "kind", "lie"), LYING_LINES, ids=lambda each: str(each))
def test_a_line_of_a_recording_that_no_run_writes_is_named(run, tmp_path, recorded, name, kind, lie) -> None:
    place = max(place for place, line in enumerate(recorded[name]) if line["type"] == kind)
    lines = [*recorded[name]]
    lines[place] = {**lines[place], **lie}
    folder = write_recorded(tmp_path, {**recorded, name: lines})
    status, err = looked_at(run, folder, ["show"])
    assert (status, err.count("\n")) == (2, 1), err
    assert f"{name}: line {place + 1}: " in err
    assert f"$.{next(iter(lie))}" in err
    assert looked_at(run, folder, ["watch"])[0] == 2


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_line_of_a_recording_says_it_is_an_answer_or_one_line(run, tmp_path, recorded, data) -> None:
    name = data.draw(st.sampled_from(sorted(recorded)))
    kind = data.draw(st.sampled_from(sorted({line["type"] for line in recorded[name]})))
    place = data.draw(st.sampled_from([place for place, line in enumerate(recorded[name]) if line["type"] == kind]))
    key = data.draw(st.sampled_from(sorted(recorded[name][place])))
    lines = [*recorded[name]]
    lines[place] = {**lines[place], key: data.draw(st.sampled_from([*VALUES, -1e308, 1e-320, [1e308, 1e308]]))}
    folder = write_recorded(tmp_path, {**recorded, name: lines})
    status, err = looked_at(run, folder, data.draw(st.sampled_from([*LOOKS, ["watch"]])))
    assert status in (0, 2), err
    assert status != 2 or err.count("\n") == 1, err


def test_json_is_read_as_it_is_written() -> None:
    assert from_json(b'{"a": [1, {"b": "c"}]}', dict[str, Any]) == {"a": [1, {"b": "c"}]}
    for content in (b"{", b'{"a": 1, "a": 2}', b'[{"a": 1, "a": 2}]', b"[" * 100_000, b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            from_json(content, Any)
