"""Plan files: JSON that a person can read, one server a line, versioned, decoded with errors that name the field."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from recycle.errors import JobError, PlanFileError
from recycle.files import from_json, read_bytes, write_whole
from recycle.job import Job, Server
from recycle.kinds import PLAN, mistaken
from recycle.plan.instruction import Instruction
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan, Provenance

FORMAT = "recycle plan"
VERSION = 1

T = TypeVar("T")

Time = Annotated[int, msgspec.Meta(ge=0)]


class Head(msgspec.Struct, frozen=True):
    """What every file of ours begins with."""

    format: str
    version: int


class PlanDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a plan file in their order; servers and instructions in their text forms."""

    format: str
    version: int
    job: Job
    failed: list[str]
    roles: dict[str, str]
    mode: Mode
    form: Form
    makespan: Time
    period: Time
    bound: Time
    baseline: Time
    provenance: Provenance
    programs: dict[str, list[str]]


SHARED = ("job", "mode", "form", "makespan", "period", "bound", "baseline", "provenance")
"""What is the same in a plan and in its document."""


def document_of(plan: Plan) -> PlanDocument:
    """What a plan file says of a plan, but for its programs."""
    return PlanDocument(
        format=FORMAT,
        version=VERSION,
        failed=[str(server) for server in plan.dead],
        roles={str(server): str(role) for server, role in sorted(plan.roles.items())},
        programs={},
        **{each: getattr(plan, each) for each in SHARED},
    )


def encode_plan(plan: Plan) -> bytes:
    """The content of a plan file: the same bytes for the same plan, on any machine."""
    fields: dict[str, Any] = msgspec.to_builtins(document_of(plan))
    del fields["programs"]
    lines = [f"  {_json(key)}: {_json(value)}" for key, value in fields.items()]
    rows = [
        f"    {_json(str(server))}: {_json([str(each) for each in plan.programs[server]])}"
        for server in sorted(plan.programs)
    ]
    lines.append('  "programs": {\n' + ",\n".join(rows) + "\n  }")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode_plan(content: bytes, source: str, only: Server | None = None, packed: int | None = None) -> Plan:
    """The plan that a file's content describes. It is well-formed; whether it is legal the checker says.

    Args:
        content: what the file holds.
        source: what to call it in errors.
        only: leave out the programs of all others; None to read all.
        packed: the number of programs that are kept elsewhere; None where the content has them.

    Raises:
        PlanFileError: the content is no plan of this version.
    """
    document = decode(content, PlanDocument, FORMAT, VERSION, source)
    if packed is None:
        require_held(document, len(document.programs), sum(map(len, document.programs.values())), source)
    else:
        require_held(document, packed, None, source)
    try:
        dead = document.job.dead_servers([Server.parse(text) for text in document.failed])
        roles = {Server.parse(server): Server.parse(role) for server, role in document.roles.items()}
        document.job.require_servers([*roles, *roles.values()])
    except JobError as error:
        raise PlanFileError(f"{source}: {error} - at `$.failed` or `$.roles`") from error
    programs, seen = {}, set()
    for name, texts in document.programs.items():
        try:
            server = Server.parse(name)
            document.job.require_servers([server])
        except JobError as error:
            raise PlanFileError(f"{source}: {error} - at `$.programs`") from error
        if server in seen:
            raise PlanFileError(f"{source}: {name}: {server} has another program - at `$.programs`")
        seen.add(server)
        if only is None or server == only:
            programs[server] = parse_program(texts, f"{source}: $.programs.{name}")
    shared = {each: getattr(document, each) for each in SHARED}
    return Plan(dead=dead, roles=roles, programs=programs, **shared)


def require_held(document: PlanDocument, servers: int, instructions: int | None, source: str) -> None:
    """Refuse a plan whose job is far larger than what there is of it, before anything is made for that job.

    Args:
        document: the plan.
        servers: that have programs.
        instructions: in all of these; None where they are not read yet.
        source: what to call it in errors.

    Raises:
        PlanFileError: it is.
    """
    try:
        document.job.require_held(servers + len(document.failed), instructions)
    except JobError as error:
        raise PlanFileError(f"{source}: {error}; the file is damaged, or its job was changed - at `$.job`") from error


def parse_program(texts: list[str], source: str) -> tuple[Instruction, ...]:
    """Instructions from their text forms.

    Raises:
        PlanFileError: one of them is no instruction; the message names its place.
    """
    parse = Instruction.parse
    try:
        return tuple([parse(text) for text in texts])
    except (PlanFileError, JobError):
        for index, text in enumerate(texts):
            try:
                parse(text)
            except (PlanFileError, JobError) as error:
                raise PlanFileError(f"{source}[{index}]: {error}") from error
        raise


def decode(content: bytes, kind: type[T], format: str, version: int, source: str) -> T:
    """Decode a versioned JSON file of ours.

    Raises:
        PlanFileError: it is not JSON, of another format or version, or has a missing, unknown or wrong field.
    """
    try:
        head = from_json(content, Head)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"{source}: this is no {format} file: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{source}: the file is damaged or cut short: {error}; make it again") from error
    if head.format != format:
        raise PlanFileError(
            f"{source}: this is a {head.format!r} file, and a {format!r} file is needed - at `$.format`"
        )
    if head.version != version:
        raise PlanFileError(
            f"{source}: version {head.version} of the {format} format, and this release reads version {version}; "
            "make the file again with this release - at `$.version`"
        )
    try:
        return from_json(content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{source}: {error}") from error


def load_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        UserError: it cannot be read, or is no plan of this version.
    """
    content = read_bytes(path)
    mistake = mistaken(content, PLAN)
    if mistake is not None:
        raise PlanFileError(f"{path}: {mistake}")
    return decode_plan(content, str(path))


def save_plan(plan: Plan, path: Path, *, private: bool = False) -> None:
    """Write a plan file, whole or not at all.

    Args:
        plan: what to write.
        path: where to.
        private: whether nobody but its owner may read it, at no moment.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(path, encode_plan(plan), private=private)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
