"""Every pair of settings of two starts: the second one goes on from the first, or it is one line before it begins."""

from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import msgspec
import pytest

from harness.examples import QUICK, paper_job
from recycle.control.board.joinfile import JOIN_FILE, JoinFile
from recycle.control.membership.participant import participants_of
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.megatron.gpt import training
from recycle.megatron.gpt.memory_copies import keeper_setting
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.training import begin_in_memory, find_newest, require_fit
from recycle.placement import parse_placement
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.checkpoint_folders import MANIFEST, Manifest, folder_of
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.greetings import Hello, KeeperOffer
from recycle.runtime.launch.meet.keepers import KeeperSlot
from recycle.runtime.step.checkpoint import VERSION, complete
from recycle.state.redundancy import Redundancy

MODEL = ModelOptions(4, 32, 4, 16)
COPIES = Redundancy.parse("copies=1")
TEXT = "the text"


class OtherSetting(NamedTuple):
    """One that differs from the plainest start.

    Attributes:
        run: fields of the run that differ.
        model: fields of its model that do.
        job: fields of its job that do.
        plan: more arguments of its plan.
        differs: what must be the same, and is not; empty if it goes with the plainest.
        in_memory: the same of what only copies in memory ask for.
    """

    run: dict[str, Any] = {}  # noqa: RUF012 - never changed
    model: dict[str, Any] = {}  # noqa: RUF012
    job: dict[str, Any] = {}  # noqa: RUF012
    plan: tuple[Any, ...] = ((), Mode())
    differs: str = ""
    in_memory: tuple[str, ...] = ()


SETTINGS = {
    "plain": OtherSetting(),
    "distributed optimizer": OtherSetting(model={"distributed_optimizer": True}),
    "more copies": OtherSetting(run={"redundancy": Redundancy.parse("copies=2")}),
    "parity": OtherSetting(run={"redundancy": Redundancy.parse("parity=2+1")}, in_memory=("parity",)),
    "bf16": OtherSetting(model={"bf16": True}, differs="bf16"),
    "exact": OtherSetting(model={"exact": True}, differs="exact"),
    "tensor parallel": OtherSetting(model={"tensor_parallel": 2}, differs="tensor_parallel"),
    "sequence parallel": OtherSetting(
        model={"tensor_parallel": 2, "sequence_parallel": True}, differs="tensor_parallel"
    ),
    "virtual stages": OtherSetting(job={"stages": 4, "placement": "interleaved:2"}, in_memory=("stages", "placement")),
    "more pipelines": OtherSetting(job={"pipelines": 3}, differs="pipelines"),
    "more stages": OtherSetting(job={"stages": 4}, in_memory=("stages",)),
    "more micro-batches": OtherSetting(job={"micro_batches": 6}, differs="micro_batches"),
    "a larger model": OtherSetting(model={"hidden": 64}, differs="hidden"),
    "another optimizer": OtherSetting(model={"optimizer": "sgd"}, differs="optimizer"),
    "a dead server": OtherSetting(plan=((Server(1, 1),), Mode())),
    "one optimizer step for all": OtherSetting(plan=((), Mode("fused", "global"))),
    "another device": OtherSetting(run={"device": "cuda"}),
}
PAIRS = list(permutations(SETTINGS, 2))


def start(folder, setting, **more):
    """A start with a setting."""
    sizes = {"pipelines": 2, "stages": 2, "micro_batches": 4, **setting.job}
    placement = sizes.pop("placement", None)
    job = paper_job(released=0, **sizes)
    if placement is not None:
        job = msgspec.structs.replace(job, placement=parse_placement(placement, 2))
    plan = make_plan(job, *setting.plan, QUICK)
    model = msgspec.structs.replace(MODEL, **setting.model)
    return Run(plan, model, 10, folder, **{"redundancy": COPIES, **setting.run, **more})


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """With each setting, and what it leaves: a checkpoint of its own, and a folder whose state is in memory."""
    found = {}
    for name, setting in SETTINGS.items():
        folder = tmp_path_factory.mktemp("run")
        run = start(folder / "disk", setting)
        manifest = Manifest(VERSION, 5, run.settings | {"text": TEXT, "stages": run.plan.job.depth})
        partial = run.checkpoints / ".partial"
        partial.mkdir(parents=True)
        complete(run.checkpoints, manifest, partial=partial)
        kept = msgspec.structs.replace(run, folder=folder / "memory")
        kept.folder.mkdir()
        begin_in_memory(kept, TEXT, there=False)
        JoinFile("127.0.0.1", 1, 2, "token", "", None).write(kept.folder / JOIN_FILE)
        found[name] = run, kept
    return found


def require(before, after, differing):
    """A start can go on from another one's, or the line names what differs."""
    if not differing:
        require_fit(after, TEXT)
        return
    with pytest.raises(RunError) as caught:
        require_fit(after, TEXT)
    said = str(caught.value)
    assert "\n" not in said
    assert "go on with the same, or start a new run in another folder" in said
    assert any(f"its {each} is" in said for each in differing), said


def differing(*names):
    """What must be the same and is not in two settings: in checkpoints, and in memory."""
    one, other = (SETTINGS[each] for each in names)
    on_disk = {one.differs, other.differs} - {""} if one.differs != other.differs else set()
    # Copies can be gone on from with parity, and not the other way round.
    return on_disk, on_disk | {*one.in_memory} | ({*other.in_memory} - {"parity"})


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_every_pair_goes_on_or_is_one_line(starts, before, after):
    on_disk, in_memory = differing(before, after)
    run, kept = starts[before]
    later = starts[after][0]
    resume = msgspec.structs.replace(later, folder=run.folder, resume=True)
    require(run, resume, on_disk)
    adopts = msgspec.structs.replace(later, folder=run.folder.with_name("new"), resume_from=run.folder)
    require(run, adopts, on_disk)
    require(kept, msgspec.structs.replace(later, folder=kept.folder, resume=True), in_memory)


def test_another_text_is_refused_wherever_the_state_is(starts):
    for run in starts["plain"]:
        with pytest.raises(RunError, match=f"its text is {TEXT}, and this run's is another one"):
            require_fit(msgspec.structs.replace(run, resume=True), "another one")


def test_copies_that_are_gone_ask_for_nothing_where_there_is_a_checkpoint(starts, tmp_path, monkeypatch):
    run = msgspec.structs.replace(starts["plain"][0], folder=tmp_path / "run")
    (tmp_path / "run").mkdir()
    begin_in_memory(run, TEXT, there=False)
    JoinFile("127.0.0.1", 1, 2, "token", "", None).write(run.folder / JOIN_FILE)
    recut = msgspec.structs.replace(
        starts["more stages"][0], folder=run.folder, resume=True, resume_from=starts["plain"][0].folder
    )
    require_fit(recut, TEXT)
    monkeypatch.setattr(training, "is_kept", lambda token: token == "token")
    with pytest.raises(RunError, match=r"what .* has in memory: its stages is 2, and this run's is 4"):
        require_fit(recut, TEXT)


def test_copies_on_other_hosts_than_the_first_are_of_the_same_settings(starts, tmp_path):
    before, recut = (
        msgspec.structs.replace(starts[name][0], folder=tmp_path, resume=True) for name in ("plain", "more stages")
    )
    hosts = [Hello(f"host{host}", "", f"10.0.0.{host}", {}, KeeperOffer(1, 1 << 40)) for host in range(2)]
    has_copies = msgspec.structs.replace(hosts[1], keeper=KeeperOffer(1, 1 << 40, 7))

    def begin(run, *hellos):
        setting = keeper_setting(run, KeeperSlot("", None, resumes=True))
        everybody = participants_of(View.of(run.plan).members, 1)
        setting._replace(begin=partial(begin_in_memory, run, TEXT)).direct(everybody, hellos)

    begin(before, *hosts)
    # A start that is refused changes nothing for the next one.
    for _ in range(2):
        with pytest.raises(RunError, match=r"what .* has in memory: its stages is 2, and this run's is 4"):
            begin(recut, hosts[0], has_copies)
    begin(before, hosts[0], has_copies)
    begin(recut, *hosts)
    begin(recut, hosts[0], has_copies)


@pytest.mark.parametrize(
    "lie",
    [{"step": 7}, *({"settings": {"stages": stages}} for stages in (None, "2", 0, -2, 3, 8))],
    ids=lambda lie: str(lie.get("settings", lie)),
)
def test_a_run_goes_on_from_the_checkpoint_before_one_whose_manifest_lies(tmp_path, lie):
    run = start(tmp_path, SETTINGS["plain"], resume=True, redundancy=None)
    settings = run.settings | {"text": TEXT, "stages": 2}
    for step, said in ((1, {}), (2, lie)):
        partial = run.checkpoints / ".partial"
        partial.mkdir(parents=True)
        complete(run.checkpoints, Manifest(VERSION, step, settings), partial=partial)
        if said:
            lying = {"version": VERSION, "step": step} | said | {"settings": settings | said.get("settings", {})}
            (folder_of(run.checkpoints, step) / MANIFEST).write_bytes(msgspec.json.encode(lying))
    require_fit(run, TEXT)
    told = []
    assert find_newest(run, TEXT, told.append) == 1
    (warning,) = [each.text for each in told]
    assert "step-00000002: its manifest " in warning
    assert "step-00000001 is taken" in warning


def test_what_is_only_in_memory_has_to_be_asked_for(starts):
    run = msgspec.structs.replace(starts["plain"][1], resume=True, redundancy=None)
    with pytest.raises(RunError, match="what is in memory is not asked for; give --keep-in-memory as before"):
        require_fit(run, TEXT)
