"""A key that is misspelt is named with the known one, in every file that people write, and before what is missing."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from recycle.cli.run.model import read_model
from recycle.errors import UserError
from recycle.faults.file import FaultsDocument, decode_faults
from recycle.faults.node_traces import FaultEvent, read_nodes
from recycle.jobfile import Costs, JobDocument, Memory, PipelineDocument, ServerDocument, load_job
from recycle.keys import convert
from recycle.runtime.model_keys import ModelKeys

SHAPE: dict[str, Any] = {"pipelines": 2, "stages": 2, "micro_batches": 4}
FAULT: dict[str, Any] = {"kind": "kill", "server": "W0_0", "iteration": 3}
LAYOUT: list[dict[str, Any]] = [{"micro_batches": 2, "servers": [{"chunks": [0]}]}]


def misspelt(name: str) -> str:
    return name[:-2] + name[-1] if len(name) > 3 else name + "x"


def without(keys: dict[str, Any], name: str, key: str) -> dict[str, Any]:
    return {**{each: value for each, value in keys.items() if each != name}, key: 1}


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("", SHAPE),
        ("costs", Costs.__struct_fields__),
        ("memory", Memory.__struct_fields__),
        ("layout", PipelineDocument.__struct_fields__),
        ("servers", ServerDocument.__struct_fields__),
        ("", set(JobDocument.__struct_fields__) - SHAPE.keys()),
    ],
)
def test_of_a_job_file(tmp_path: Path, place: str, names: list[str]) -> None:
    for name in names:
        key = misspelt(name)
        document: dict[str, Any] = {
            "": without(SHAPE, name, key),
            "costs": {**SHAPE, "costs": {key: 1}},
            "memory": {**SHAPE, "memory": {key: 1}},
            "layout": {"layout": [without(LAYOUT[0], name, key)]},
            "servers": {"layout": [{**LAYOUT[0], "servers": [without({"chunks": [0]}, name, key)]}]},
        }[place]
        path = tmp_path / "job.toml"
        path.write_text(tomli_w.dumps(document))
        with pytest.raises(UserError, match=rf"job.toml: unknown key `{key}` \(did you mean `{name}`\?\)"):
            load_job(path, {})


@pytest.mark.parametrize("name", sorted(FAULT | {"duration": "3s", "incarnation": 0}))
def test_of_a_fault_file(name: str) -> None:
    key = misspelt(name)
    with pytest.raises(UserError, match=rf"unknown key `{key}` \(did you mean `{name}`\?\) - at `\$.fault\[1\]`"):
        decode_faults(tomli_w.dumps({"fault": [FAULT, without(FAULT, name, key)]}).encode())


@pytest.mark.parametrize("name", ModelKeys.__struct_fields__)
def test_of_a_model_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.toml").write_text(f"{misspelt(name)} = 1\n")
    with pytest.raises(UserError, match=rf"unknown key `{misspelt(name)}` \(did you mean `{name}`\?\)"):
        read_model(tmp_path / "model.toml")


@pytest.mark.parametrize("name", FaultEvent.__struct_fields__)
def test_of_a_trace_in_json(name: str) -> None:
    event = {"node_id": "a", "event_time": 1.0, "event_type": "fault_start"}
    wrong = json.dumps([event, without(event, name, misspelt(name))]).encode()
    with pytest.raises(UserError, match=rf"unknown key `{misspelt(name)}` \(did you mean `{name}`\?\) - at `\$\[1\]`"):
        read_nodes(wrong)
    more = [{**event, "rack": 1}, {**event, "event_type": "fault_end", "event_time": 2.0}]
    assert len(read_nodes(json.dumps(more).encode()).outages) == 1


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        ({**SHAPE, "forward": 2}, JobDocument, "unknown key `forward` (did you mean `costs.forward`?)"),
        ({**SHAPE, "costs": {"limit": 2}}, JobDocument, "(did you mean `memory.limit`?) - at `$.costs`"),
        ({"Micro-Batches": 4}, JobDocument, "unknown key `Micro-Batches` (did you mean `micro_batches`?)"),
        ({"faults": [FAULT]}, FaultsDocument, "unknown key `faults` (did you mean `fault`?)"),
        (FAULT, FaultsDocument, "unknown key `kind` (did you mean `fault.kind`?)"),
        ({"x" * 1000: 1}, FaultsDocument, f"unknown key `{'x' * 100}`; the keys here are fault"),
        ({"fault": {}}, FaultsDocument, "Expected `array`, got `object` - at `$.fault`"),
    ],
)
def test_a_key_elsewhere_is_named_with_its_table(document: dict[str, Any], kind: type[Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        convert(document, kind)
    assert str(error.value).endswith(message)
