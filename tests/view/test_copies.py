import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.record.recording import CopyLine
from recycle.view.copies import KnownCopies, StageCopies, copies_lines, copies_of, live_by_unit
from tests.record.test_following import HEAD

PEERS = ("W0_1", "W1_1", "W2_1")


def put(version, hosts, peers=PEERS, epoch=0, began=0, stage=1):
    """What the peers of a stage tell when each has put its part of a version."""
    return [
        CopyLine(peer, stage, epoch, version, number, len(peers), began, list(hosts))
        for number, peer in enumerate(peers)
    ]


def known(*lines):
    copies = KnownCopies()
    copies.add(lines)
    return copies


def stage_1(copies, live=PEERS):
    return copies.stages([(), live])[1]


def test_a_version_is_there_when_all_its_parts_are():
    three = put(3, ["a", "b"])
    copies = known(*put(2, ["a", "b"]), *three[:2])
    assert stage_1(copies) == StageCopies(1, PEERS, 2, (("a", 3), ("b", 3)), 3)
    copies.add(three[2:])
    assert stage_1(copies).version == 3


def test_a_host_may_have_some_parts_only():
    parts = put(5, ["a"])[:2] + put(5, ["b"])[2:]
    assert stage_1(known(*parts)).hosts == (("a", 2), ("b", 1))
    assert stage_1(known(*parts)).text == (
        "on 3 live servers; after iteration 5 in memory of a (2 of 3 parts), b (1 of 3 parts)"
    )


def test_what_a_keeper_that_is_gone_had_is_gone():
    copies = known(*put(4, ["a", "b"]), *put(5, ["b"]))
    assert stage_1(copies).hosts == (("b", 3),)
    copies.add(put(6, []))
    assert stage_1(copies).version is None


def test_where_each_host_has_a_piece_of_its_own_enough_of_them_must_be_there():
    def pieces(version, hosts):
        return [msgspec.structs.replace(line, needed=2) for line in put(version, hosts)]

    copies = known(*pieces(4, ["a", "b", "c"]), *pieces(5, ["b"]))
    assert stage_1(copies).version is None
    copies = known(*pieces(4, ["a", "b", "c"]), *pieces(5, ["b", "c"]))
    assert stage_1(copies).text == (
        "on 3 live servers; after iteration 5 in memory of b, c, any 2 of which are enough for a part"
    )


def test_what_a_later_view_has_taken_back_is_none():
    copies = known(*put(7, ["a"]), *put(8, ["a"]), *put(7, ["a"], PEERS[:2], epoch=1, began=7))
    assert stage_1(copies, PEERS[:2]) == StageCopies(1, PEERS[:2], 7, (("a", 2),), 2)


@given(st.randoms(use_true_random=False))
def test_recordings_of_servers_can_be_read_one_after_the_other(choice: random.Random):
    lines = [line for version in range(9) for line in put(version, ["a", "b"] if version < 4 else ["b"])]
    lines += put(8, ["b"], PEERS[:2], epoch=1, began=8)
    choice.shuffle(lines)
    assert stage_1(known(*lines)) == StageCopies(1, PEERS, 8, (("b", 2),), 2)


@pytest.mark.parametrize(
    ("live", "copies", "text"),
    [
        ((), known(), "on no live server, and nowhere else"),
        (("W0_1",), known(), "on 1 live server, and nowhere else"),
        (("W0_1",), known(*put(1, "a")), "on 1 live server; after iteration 1 in memory of a"),
        (PEERS, known(), "on 3 live servers"),
        (PEERS, known(*put(1, "abcde")), "on 3 live servers; after iteration 1 in memory of 5 hosts"),
    ],
)
def test_a_person_reads_what_the_next_death_costs(live, copies, text):
    found = stage_1(copies, live)
    assert found.text == text
    assert found.is_last == ("nowhere else" in text)
    assert copies_lines([found]) == [f"state of stage 1: {text}"]


def test_of_a_run_that_keeps_nothing_in_memory_nothing_is_said():
    job = paper_job(stages=2)
    assert copies_of([HEAD], job, PEERS) == ()
    assert copies_of([HEAD, *put(2, ["a"])], job, PEERS)[1].hosts == (("a", 3),)


def test_servers_are_sorted_into_their_stages():
    assert live_by_unit(paper_job(stages=2), ["W1_1", "W0_1", "W2_0"]) == [["W2_0"], ["W0_1", "W1_1"]]
