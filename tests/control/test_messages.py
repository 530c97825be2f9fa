import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import (
    LARGEST_MESSAGE,
    NOTHING,
    Death,
    Report,
    Verdict,
    differs,
    seal,
    unseal,
)
from recycle.control.membership.view import Member
from recycle.job import Server

TOKEN = "a" * 64
REPORT = Report("W1_2#0", 3, 7, 6, None)


@given(st.data())
def test_who_has_the_verdict_before_needs_no_members_of_the_next(data: st.DataObject) -> None:
    servers = [Server(pipeline, stage) for pipeline in range(3) for stage in range(3)]
    lives = {server: data.draw(st.integers(0, 2)) for server in servers}
    members = sorted(Member(*each) for each in data.draw(st.permutations(list(lives.items())))[:6])
    dead = data.draw(st.sets(st.sampled_from(members)))
    vacant = [each for each in servers if each not in {member.server for member in set(members) - dead}]
    joined = [Member(each, lives[each] + 1) for each in (data.draw(st.sets(st.sampled_from(vacant))))]
    before = Verdict(4, tuple(map(str, members)), 7)
    deaths = tuple(Death(str(each), "died", "agent", 0.0) for each in sorted(dead))
    after = Verdict(
        5, tuple(map(str, sorted({*members, *joined} - dead))), 8, deaths=deaths, joined=tuple(map(str, sorted(joined)))
    )
    told = unseal(TOKEN, "key", seal(TOKEN, "key", after.without_members()), Verdict)
    assert told.following(before) == after
    assert told.following(before).view == after.view


def test_a_verdict_that_does_not_follow_is_no_verdict() -> None:
    told = Verdict(2, (), 5, deaths=(Death("W1_1#0", "died", "agent", 1.5),))
    with pytest.raises(ControlError, match="W1_1#0 died in it, and was not in the view"):
        told.following(Verdict(1, ("W0_0#0", "W1_1#1"), 5))


@given(st.data())
def test_a_seal_is_broken_by_every_flipped_bit(data: st.DataObject) -> None:
    sealed = bytearray(seal(TOKEN, "key", REPORT))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ControlError, match="was not made with this run's token"):
        unseal(TOKEN, "key", bytes(sealed), Report)


@given(st.integers(0, 200))
def test_a_seal_is_broken_by_every_cut(length: int) -> None:
    sealed = seal(TOKEN, "key", REPORT)
    if length < len(sealed):
        with pytest.raises(ControlError, match="was not made"):
            unseal(TOKEN, "key", sealed[:length], Report)


@pytest.mark.parametrize(("token", "key"), [("b" * 64, "key"), (TOKEN, "kex"), (TOKEN, "ke"), (TOKEN, "")])
def test_a_seal_holds_for_one_token_and_one_key(token: str, key: str) -> None:
    sealed = seal(TOKEN, "key", REPORT)
    with pytest.raises(ControlError, match=f"{key}: was not made with this run's token"):
        unseal(token, key, sealed, Report)


@pytest.mark.parametrize(
    "content",
    [
        {"member": "W1_2#0", "epoch": 3, "newest": 7, "oldest": 7, "extra": 1},
        {"member": "W1_2#0", "epoch": 3, "newest": 7, "oldest": 5},
        {"member": "W1_2#0", "epoch": 3, "newest": 6, "oldest": 7},
        {"member": "W1_2#0", "epoch": 3, "newest": 0, "oldest": NOTHING},
        {"member": "W1_2#0", "epoch": 3, "newest": -2, "oldest": -2},
        {"member": "W1_2#0", "epoch": -2, "newest": 7, "oldest": 7},
        {"member": "W1_2", "epoch": 3, "newest": 7, "oldest": 7},
        {"member": "W1_2#" + "0" * 40, "epoch": 3, "newest": 7, "oldest": 7},
        {"member": "W1_2#0", "epoch": "3", "newest": 7, "oldest": 7},
        [],
    ],
)
def test_what_is_no_report_is_refused_though_the_seal_is_good(content: object) -> None:
    with pytest.raises(ControlError, match=r"^key: .*the same version$"):
        unseal(TOKEN, "key", seal(TOKEN, "key", content), Report)


@pytest.mark.parametrize("members", [("W0_1#0", "W0_0#0"), ("W0_0#0", "W0_0#1"), ("W0_0#0", "W0_0#0")])
def test_a_verdict_names_every_server_once_and_in_order(members: tuple[str, ...]) -> None:
    with pytest.raises(ControlError, match="not in order, or a server is twice"):
        Verdict(1, members, 0)


def test_large_messages_are_refused_where_they_are_made_and_where_they_are_read() -> None:
    with pytest.raises(ControlError, match="at most"):
        seal(TOKEN, "key", bytes(LARGEST_MESSAGE))
    with pytest.raises(ControlError, match="at most"):
        unseal(TOKEN, "key", bytes(LARGEST_MESSAGE + 100), Report)


def test_versions_are_those_between_oldest_and_newest() -> None:
    assert REPORT.versions == {6, 7}
    assert Report("W1_2#0", 3, 7, 7).versions == {7}
    assert Report("W1_2#0", 3, NOTHING, NOTHING).versions == set()


def test_the_first_difference_of_fingerprints_is_named() -> None:
    ours = {"model": "a", "version": "1"}
    assert differs(ours, ours) == ""
    assert differs({"model": "a", "version": "2"}, ours) == "version is '2', and that of the run is '1'"
    assert differs({"version": "1"}, ours) == "model is 'not given', and that of the run is 'a'"


READ_BY_THREADS = (
    "control.membership.messages",
    "control.host.direct_heartbeats",
    "control.host.signs",
    "control.store.host_requests",
    "state.channel",
)


@pytest.mark.parametrize("module", READ_BY_THREADS)
def test_no_thread_is_the_first_to_read_a_kind_of_message(module):
    """Two that were, at the same time, would crash: msgspec reads annotations then."""
    program = (
        "import typing, msgspec\n"
        "from recycle.control.membership.messages import MemberName\n"
        f"from recycle.{module} import *\n"
        "kinds = [each for each in vars().values() if isinstance(each, type(msgspec.Struct))]\n"
        "hashed, look = [], typing._AnnotatedAlias.__hash__\n"
        "typing._AnnotatedAlias.__hash__ = lambda alias: hashed.append(alias) or look(alias)\n"
        "assert hash(MemberName) and hashed.pop() is MemberName\n"
        "for each in kinds:\n"
        "    msgspec.msgpack.Decoder(each)\n"
        "assert kinds and not hashed\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
