"""Every transport keeps every rule of the contract, and the tests of the contract find out who does not."""

import re
import threading
from pathlib import Path

import pytest
import torch

from harness import stand_in_library
from harness.stand_in import Library
from recycle.runtime.net.connect import connect_pair
from recycle.runtime.net.nccl.bindings import Call
from tests.runtime.net.contract.mutants import MUTANTS
from tests.runtime.net.contract.ranks import GLOO, STAGED, Broken, Ends, Processes, stand_in
from tests.runtime.net.contract.rules import RULES

PATIENCE = 90.0
SHORT = 2.0
"""For who is expected to hang."""


class LibraryProcesses:
    """Processes over the stand-in that is a library. Private links are gloo's there, as beside NCCL.

    Args:
        one_queue: whether what a rank starts runs one after the other.
    """

    def __init__(self, one_queue):
        self._one_queue = one_queue

    def run(self, rule, count, patience):
        if why := stand_in_library.lacking():
            pytest.skip(why)
        connect = stand_in_library.connect_over(stand_in_library.built(), self._one_queue)
        Processes(Ends(connect, connect_pair)).run(rule, count, patience)


TRANSPORTS = {
    "gloo": Processes(GLOO),
    "staged": Processes(STAGED),
    "stand-in for NCCL": stand_in(one_queue=False),
    "stand-in with one queue": stand_in(one_queue=True),
    "library for NCCL": LibraryProcesses(one_queue=False),
    "library with one queue": LibraryProcesses(one_queue=True),
}
SAMPLED = {"library with one queue"}
"""What each of its two words says is tried beside it: that library with queues of its own, and one queue in threads."""
EXCUSED = {"both_directions_carry_at_once", "links_do_not_wait_for_each_other"}
"""Who has one queue does not keep these."""
DOCUMENT = Path(__file__).parents[4] / "docs" / "internals" / "transports.md"


CASES = [
    pytest.param(transport, name, marks=[pytest.mark.long] if transport in SAMPLED else [])
    for name in RULES
    for transport in TRANSPORTS
    if not transport.endswith("with one queue") or name not in EXCUSED
]


@pytest.mark.parametrize(("transport", "name"), CASES)
def test_a_transport_keeps_a_rule(transport, name):
    transport, rule = TRANSPORTS[transport], RULES[name]
    transport.run(rule.run, rule.count, PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("name", RULES)
def test_who_breaks_a_rule_is_found_out(name):
    with pytest.raises(Broken):
        Processes(MUTANTS[name]).run(RULES[name].run, RULES[name].count, SHORT)


def test_what_one_queue_is_excused_from_it_cannot_keep():
    for transport in (stand_in(one_queue=True), LibraryProcesses(one_queue=True)):
        for name in EXCUSED:
            with pytest.raises(Broken, match="did not end"):
                transport.run(RULES[name].run, RULES[name].count, SHORT)


def test_the_document_has_each_rule_with_its_test():
    written = re.findall(r"^(\d+)\. .* `(\w+)`$", DOCUMENT.read_text(), re.MULTILINE)
    assert [(each.number, name) for name, each in RULES.items()] == [(int(number), name) for number, name in written]


def test_the_stand_in_is_as_strict_as_it_says():
    library = Library()
    ends = [library.join(b"name", rank, 2) for rank in range(2)]
    place = ends[0].start([Call("sum", torch.ones(1))])
    ends[1].abort()
    assert not ends[0].is_done(place)
    assert not ends[0].aborted
    with pytest.raises(RuntimeError, match="was aborted"):
        ends[1].start([Call("sum", torch.ones(1))])
    for never in (ends[0].divide, ends[1].destroy):
        thread = threading.Thread(target=never, daemon=True)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
