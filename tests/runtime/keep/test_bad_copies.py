"""Whatever is wrong with a copy or a piece, on whichever rung: it is never taken, the next one is, and that is said."""

import re
import threading
from contextlib import ExitStack

import msgspec
import pytest

from harness.bad_memory import flip
from recycle.control.board.joinfile import new_token
from recycle.control.membership.view import View
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.keeper_copies import KeeperCopies, KnownKeepers
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.keeper import Shelf, listen, listen_to_hosts, serve
from recycle.state.redundancy import Redundancy
from recycle.state.segment import Segment
from tests.runtime.keep.test_keeper_copies import PEERS, Stage, same

BAD = 1
"""The version that goes bad."""


def flipped(content, older):
    flip(content.segment, content.segment.size // 2)
    return content


def truncated(content, older):
    found = bytearray(content.segment.size - 7)
    content.segment.read(0, memoryview(found))
    segment = Segment.make(len(found))
    segment.write(0, memoryview(found))
    return content._replace(segment=segment)


def of_an_older_version(content, older):
    return older


def half_written(content, older):
    size = content.segment.size
    content.segment.write(size // 2, memoryview(bytes(size - size // 2)))
    return content


class Keepers:
    """A keeper of this host, and others that are reached as those of other hosts.

    Attributes:
        clients: to each, the near one first.
        bad: of how many of them, from the near one on, what they have of the version goes bad.
    """

    def __init__(self, count, monkeypatch, spoil, stack):
        self.clients, self.bad, self._shelves, self._spoiled = [], 0, [], {}
        find = Shelf.find

        def find_bad(shelf, part):
            content = find(shelf, part)
            if content is None or part.version != BAD or self._shelves.index(shelf) >= self.bad:
                return content
            if (shelf, part) not in self._spoiled:
                older = find(shelf, msgspec.structs.replace(part, version=BAD - 1))
                self._spoiled[shelf, part] = spoil(content, older)
            return self._spoiled[shelf, part]

        begin = Shelf.__init__

        def note(shelf, limit):
            begin(shelf, limit)
            self._shelves.append(shelf)

        monkeypatch.setattr(Shelf, "find", find_bad)
        monkeypatch.setattr(Shelf, "__init__", note)
        for number in range(count):
            token = new_token()
            near, far = stack.enter_context(listen(token)), stack.enter_context(listen_to_hosts("127.0.0.1"))
            threading.Thread(target=serve, args=([near, far], token, 1 << 26), daemon=True).start()
            address = far.getsockname() if number else HERE
            self.clients.append(KeeperClient(address, token, f"host{number}"))
            # It has begun, so that their order is known.
            self.clients[-1].copies()
            stack.callback(self.clients[-1].close)


@pytest.mark.parametrize("spoil", [flipped, truncated, of_an_older_version, half_written])
@pytest.mark.parametrize("text", ["copies=2", "parity=2+2"])
def test_a_bad_copy_is_left_out_on_every_rung(text, spoil, monkeypatch):
    redundancy = Redundancy.parse(text)
    with ExitStack() as stack:
        keepers = Keepers(redundancy.pieces, monkeypatch, spoil, stack)
        said = []

        def copies_of(server, stage, view):
            known = KnownKeepers(keepers.clients, redundancy, near=keepers.clients[0].name)
            return KeeperCopies(
                lambda: known, server, 2, stage, lambda: view, lambda kind, text: said.append((kind, text))
            )

        view = View.among(PEERS)
        for server in PEERS:
            stage = Stage()
            mine = copies_of(server, stage, view)
            for _ in range(BAD + 1):
                mine.before(stage.newest, Instruction(Op.REDUCE, 1))
                stage.newest += 1
        # From the near rung on, as many as may be bad; and then one more.
        joiner = copies_of(PEERS[0], Stage(), view)
        for bad in range(1, redundancy.spare + 1):
            keepers.bad = bad
            said.clear()
            assert same(joiner.fetch(BAD), Stage(BAD).state())
            warnings = [text for kind, text in said if kind == "warning"]
            assert len(warnings) == len(PEERS), warnings
            assert all(
                re.search(rf"part [12] of 2 of version 1 of stage 1 at host{bad - 1}", each) for each in warnings
            )
            assert all("never trained on, and the next source is tried" in each for each in warnings)
        keepers.bad = redundancy.spare + 1
        with pytest.raises(ConnectionLost, match=r"as (it was|they were) put"):
            joiner.fetch(BAD)
        assert joiner.find_versions()[1] == (BAD - 1,)
        assert same(joiner.fetch(BAD - 1), Stage(BAD - 1).state())
