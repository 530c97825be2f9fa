"""Hosts between which no data comes through are named, and after a while the run goes on without one of them."""

from collections import defaultdict
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, View
from recycle.job import Server
from recycle.runtime.recover.link_watch import LATEST, LIMIT, SUSPECT, LinkWatch, host_to_leave_out

SERVERS = [Server(pipeline, 0) for pipeline in range(3)]


class Run:
    """Servers on a host each, on a clock of their own."""

    def __init__(self, pipelines=3, stages=1):
        self.time, self.said, self.dark, self.is_back = 100.0, [], set(), False
        self.silent = defaultdict(set)
        self.job = paper_job(pipelines=pipelines, stages=stages, micro_batches=2)
        self.view = View.among(Server(pipeline, stage) for pipeline in range(pipelines) for stage in range(stages))
        self.board = Board(MemoryStore(), "token")
        self.watches = {each.server: self._watch(each, place) for place, each in enumerate(self.view.members)}

    def _watch(self, member, place):
        address = f"10.0.0.{place + 1}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("recycle.runtime.recover.link_watch.socket.gethostname", lambda: f"host{place + 1}")
            patch.setattr("recycle.runtime.recover.link_watch.host_name", lambda: f"clock/{place + 1}")
            watch = LinkWatch(
                Participant(member, SOLE),
                address,
                lambda: self.view,
                lambda: self.job,
                self.said.append,
                lambda: self.time,
                lambda: self.silent[member.server],
                lambda address, _: address not in self.dark | (set() if self.is_back else self.silent[member.server]),
            )
        watch.begin(self.board)
        return watch

    def look(self, seconds=0.0):
        self.time += seconds
        for watch in reversed(self.watches.values()):
            watch.look(self.board)

    @property
    def dead(self):
        deaths = {each.server: self.board.failures.death(each) for each in self.view.members}
        return {str(server): death.reason for server, death in deaths.items() if death is not None}


def test_two_hosts_are_named_once_and_the_later_one_is_left_out():
    run = Run()
    run.silent |= {SERVERS[1]: {"10.0.0.3"}, SERVERS[2]: {"10.0.0.2"}}
    run.look()
    run.look(SUSPECT / 2)
    assert not run.said
    run.look(SUSPECT)
    run.look(1.0)
    (said,) = run.said
    assert said.startswith(
        "no data comes through between host2 (W1_0) and host3 (W2_0), though both give signs of life"
    )
    assert not run.dead
    run.look(LIMIT)
    assert run.dead == {"W2_0": "is left out: no data comes through between host2 (W1_0) and host3 (W2_0)"}


def test_a_host_that_answers_again_is_left_out_only_if_what_was_sent_does_not_get_there_soon():
    run = Run()
    run.silent[SERVERS[1]] = {"10.0.0.3"}
    run.look()
    run.is_back = True
    run.look(LIMIT)
    run.look(LATEST - LIMIT - 1)
    assert not run.dead
    run.look(1)
    assert list(run.dead) == ["W2_0"]


def test_what_passes_is_forgotten():
    run = Run()
    for _ in range(3):
        run.silent[SERVERS[1]] = set() if run.silent[SERVERS[1]] else {"10.0.0.3"}
        run.look(LIMIT - 1)
    assert not run.dead


def test_a_host_that_only_one_side_finds_silent_is_left_out_as_well_and_others_that_are_no_members_are_not_meant():
    run = Run()
    run.silent[SERVERS[0]] = {"10.0.0.2", "192.0.2.1"}
    run.look()
    run.look(LIMIT)
    assert list(run.dead) == ["W1_0"]


def test_a_host_that_has_no_link_to_any_other_goes_alone():
    run = Run()
    run.silent |= {SERVERS[1]: {"10.0.0.1", "10.0.0.3"}, SERVERS[0]: {"10.0.0.2"}, SERVERS[2]: {"10.0.0.2"}}
    run.look()
    run.look(SUSPECT)
    run.look(LIMIT)
    assert list(run.dead) == ["W1_0"]


def test_nobody_is_left_out_without_whom_the_others_lack_a_stage():
    run = Run(pipelines=1, stages=2)
    first, second = (each.server for each in run.view.members)
    run.silent |= {first: {"10.0.0.2"}, second: {"10.0.0.1"}}
    run.look()
    run.look(2 * LIMIT)
    assert not run.dead
    assert run.said


def test_who_gets_no_answer_while_a_view_is_built_says_so_until_one_is():
    run = Run()
    run.dark = {"10.0.0.2"}
    watch = run.watches[SERVERS[2]]
    watch.blame(run.board, ["W1_0", "the store"])
    # In between there is nothing that could be unanswered.
    run.look(LIMIT / 2)
    run.time += LIMIT
    watch.blame(run.board, ["W1_0"])
    assert list(run.dead) == ["W2_0"]
    other = Run()
    other.dark = {"10.0.0.2"}
    watch = other.watches[SERVERS[2]]
    watch.blame(other.board, ["W1_0"])
    watch.built()
    other.look(1.0)
    other.time += LIMIT
    watch.blame(other.board, ["W1_0"])
    assert not other.dead


def test_a_host_that_is_only_slow_to_connect_is_not_meant():
    run = Run()
    watch = run.watches[SERVERS[2]]
    for _ in range(2):
        watch.blame(run.board, ["W1_0"])
        run.time += 2 * LIMIT
    assert not run.said
    assert not run.dead


HOSTS = ("host1", "host2", "host3", "host4")
PAIRS = st.sets(st.sampled_from([frozenset(each) for each in combinations((*HOSTS, "elsewhere"), 2)]))


@given(PAIRS, st.sets(st.sampled_from(HOSTS)))
def test_a_host_goes_that_has_a_broken_link_and_without_which_the_others_have_everything(broken, dispensable):
    known = [pair for pair in broken if pair <= set(HOSTS)]
    chosen = host_to_leave_out(broken, HOSTS, dispensable.__contains__)
    counts = {host: sum(host in pair for pair in known) for pair in known for host in pair & dispensable}
    # Of those with as many, the first one stays.
    assert chosen == max(counts, key=lambda host: (counts[host], host), default=None)
