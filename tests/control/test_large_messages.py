"""Whatever a run of a thousand servers writes is read back, and its store takes it."""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.control.membership import messages
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import (
    Alarm,
    Death,
    Description,
    JoinRequest,
    MoveOrder,
    Opening,
    PublishedPlan,
    Report,
    Verdict,
)
from recycle.control.membership.view import Member
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import LARGEST, EtcdStore
from recycle.control.store.sealed_store import SealedStore
from recycle.job import Job, Server, Stage
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.document import encode_plan
from recycle.plan.mode import Mode
from recycle.planner.source import megatron_plan

TOKEN = "a" * 64
PIPELINES, STAGES, MICRO_BATCHES = 63, 16, 16
SERVERS = [Server(pipeline, stage) for pipeline in range(PIPELINES) for stage in range(STAGES)]
NAMES = tuple(str(Member(each, 0)) for each in SERVERS)
DEAD, ALIVE = NAMES[: len(NAMES) // 2], NAMES[len(NAMES) // 2 :]
CAUSE = " and ".join(NAMES)
DEATHS = tuple(Death(each, "has given no sign of life for 3.2 s", "heartbeat", 123456.789) for each in DEAD)
UNITS = tuple(range(4 * STAGES))
STAGE = Stage(1, 1, 1, optimizer=3, reduction=0, held=1, released_at_input_gradient=0, limit=16)
PIPELINE = PlacedPipeline(
    MICRO_BATCHES, tuple(PlacedServer(UNITS[4 * stage : 4 * stage + 4], 16) for stage in range(STAGES))
)
LAYOUT = (PIPELINE,) * PIPELINES
JOB = Job(PIPELINES, MICRO_BATCHES, (STAGE,) * STAGES, (0,) * (STAGES - 1))
UNEVEN = Job(PIPELINES, MICRO_BATCHES, (STAGE,) * len(UNITS), (0,) * (len(UNITS) - 1), layout=LAYOUT)
LARGE = (
    Alarm(0, CAUSE, CAUSE),
    Death(NAMES[0], CAUSE, "link", 1.5, CAUSE),
    Description({"placement": str(LAYOUT)}, UNEVEN),
    JoinRequest(NAMES[0], 3),
    MoveOrder(3, LAYOUT),
    Opening(0, NAMES),
    Report(NAMES[0], 3, 7, 6, 5, CAUSE, ((5, 6, 7),) * len(UNITS), shards=tuple(range(PIPELINES)), chunks=UNITS),
    Verdict(
        3,
        ALIVE,
        7,
        deaths=DEATHS,
        unheard=DEATHS,
        lacking=ALIVE,
        plan=PublishedPlan(ALIVE[0]),
        stop=CAUSE,
        layout=LAYOUT,
        held=dict.fromkeys(ALIVE, UNITS),
    ),
)
PARTS = {messages.FirstPlan, messages.CataloguePlan, PublishedPlan}


class CountingStore(MemoryStore):
    """Knows how many bytes were written at once."""

    most = 0

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        self.most = max(self.most, sum(map(len, values.values())))
        super().set_many(values)


def test_these_are_all_messages() -> None:
    kinds = {each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)}
    assert kinds == {*map(type, LARGE)} | PARTS | ({Job} & kinds)


@pytest.mark.parametrize("content", LARGE, ids=lambda each: type(each).__name__)
def test_every_message_is_read_back_and_fits(content: Any) -> None:
    store = MemoryStore()
    sealed = SealedStore(store, TOKEN)
    assert sealed.write_once("key", content) == content
    assert sealed.write_once("key", content) == content
    assert sealed.read("key", type(content)) == content
    assert len(store.get("key") or b"") < LARGEST


def test_a_plan_that_is_made_at_a_failure_fits() -> None:
    store = MemoryStore()
    plan, author = encode_plan(megatron_plan(JOB, [SERVERS[0]], Mode(), 0.01)), Member(SERVERS[1], 0)
    Board(store, TOKEN).plans.publish(1, author, plan)
    assert Board(store, TOKEN).plans.find(1, author) == plan
    assert sum(len(store.get(each) or b"") for each in store.keys) < LARGEST < len(plan)


def test_the_verdict_rings_once_however_many_leaders_have_died() -> None:
    few, many = CountingStore(), CountingStore()
    for store, dead in ((few, 1), (many, len(DEAD))):
        verdict = Verdict(1, NAMES[dead:], 7, deaths=DEATHS[:dead], unheard=())
        Board(store, TOKEN).verdicts.ring(0, [Member.parse(each) for each in NAMES[: dead + 1]], verdict)
    assert many.most < few.most + 150 * len(DEAD)


def test_what_was_written_is_not_waited_for_even_if_it_cannot_be_read() -> None:
    unreadable = Opening(0, ("x" * 33,))
    assert SealedStore(MemoryStore(), TOKEN).write_once("key", unreadable) == unreadable


def test_values_that_are_too_many_bytes_for_one_request_are_written_in_several(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    values = {str(number): secrets.token_bytes(LARGEST // 10) for number in range(25)}
    store.set_many(values)
    assert store.get_many([*values]) == [*values.values()]
    kept = {f"kept/{number}": value for number, value in values.items()}
    assert store.keep_first(kept) == [*kept.values()]


@pytest.mark.parametrize("megabytes", [1.7, 4])
def test_what_etcd_does_not_take_is_refused_at_once(keys: EtcdCluster, megabytes: float) -> None:
    with pytest.raises(ControlError, match="larger --max-request-bytes"):
        EtcdStore(keys).set("key", bytes(int(megabytes * (1 << 20))))
