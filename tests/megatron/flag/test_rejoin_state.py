"""Only before an iteration can one be let in who has nothing, and then it gets all that there is."""

import pytest
import torch

from recycle.megatron.flag.state.rejoin_state import RejoinState
from recycle.runtime.errors import ConnectionLost


class Part:
    """Model and optimizer, or what the training code knows."""

    def __init__(self, value):
        self.value = value
        self.step = 0

    def state(self, step):
        return {"value": torch.tensor([self.value, step])}

    def adopt(self, step, state):
        self.value, self.step = state["value"][0].item(), step


class Counted:
    """Versions whose peers need nothing from each other."""

    def __init__(self, newest=7):
        self.newest = self.oldest = newest
        self.adopted = []

    def state(self):
        return {}

    def adopt(self, step, state):
        self.adopted.append((step, dict(state)))


def settled(versions, stage, code):
    """Of a server that trains."""
    return RejoinState(versions, stage, code, lambda: False, None)


def arriving(versions, stage, code, arrived):
    """Of one that comes back."""
    return RejoinState(versions, stage, code, lambda: True, arrived.append)


def test_who_comes_back_takes_over_everything_and_is_like_all_others_then():
    peer = settled(Counted(), Part(3), Part(4))
    versions, stage, code, arrived, comes = Counted(), Part(0), Part(0), [], [True]
    back = RejoinState(versions, stage, code, comes.pop, arrived.append)
    with peer.opened():
        back.adopt(7, peer.state())
    assert (stage.value, code.value, code.step, arrived, versions.adopted) == (3, 4, 7, [7], [])
    comes.append(False)
    back.adopt(8, peer.state())
    assert (stage.value, arrived, versions.adopted) == (3, [7], [(8, {})])


def test_who_has_just_come_back_has_all_that_the_next_one_needs():
    """Both came from one peer, or from memory, and what went wrong with the second one went wrong in their view."""
    peer = settled(Counted(), Part(3), Part(4))
    with peer.opened():
        state = peer.state()
    for _ in range(3):
        stage, code = Part(0), Part(0)
        back = arriving(Counted(), stage, code, [])
        back.adopt(7, state)
        assert (stage.value, code.value, code.step) == (3, 4, 7)
        state = back.state()


def test_who_has_come_back_takes_over_another_version_as_long_as_its_view_does_not_stand():
    versions, code, arrived = Counted(7), Part(0), []
    peer, back = settled(versions, Part(3), Part(4)), arriving(Counted(), Part(0), code, arrived)
    for version in (7, 6):
        versions.newest = version
        with peer.opened():
            back.adopt(version, peer.state())
    assert (code.step, arrived) == (6, [7, 6])


@pytest.mark.parametrize(
    ("left", "lacking"), [("stage/value", "code/"), ("code/value", "stage/"), ("", "stage/ and code/")]
)
def test_who_comes_back_does_not_begin_with_half_of_a_state(left, lacking):
    peer, stage, code, arrived = settled(Counted(), Part(3), Part(4)), Part(0), Part(0), []
    with peer.opened():
        state = {name: each for name, each in peer.state().items() if name == left}
    with pytest.raises(ConnectionLost, match=f"cannot be read: {lacking}$"):
        arriving(Counted(), stage, code, arrived).adopt(7, state)
    assert (stage.value, code.value, arrived) == (0, 0, [])


def test_between_two_boundaries_nobody_is_let_in_and_peers_are_given_what_they_need():
    door = settled(Counted(), Part(3), Part(4))
    assert not door.admits()
    assert door.state() == {}
    with door.opened():
        assert door.admits()
        assert set(door.state()) == {"stage/value", "code/value"}
    assert not door.admits()
    assert door.state() == {}


def test_who_has_to_go_back_while_one_is_let_in_gives_it_what_was_known_there():
    versions, code = Counted(7), Part(4)
    peer = settled(versions, Part(3), code)
    peer.remember(7)
    code.value, versions.newest, versions.oldest = 5, 8, 8
    peer.remember(8)
    came = Part(0)
    with peer.opened():
        versions.newest = versions.oldest = 7
        arriving(Counted(), Part(0), came, []).adopt(7, peer.state())
    assert (came.value, came.step) == (4, 7)


def test_what_is_remembered_can_be_taken_over_until_two_more_iterations_are_done():
    versions, code = Counted(), Part(4)
    peer = settled(versions, Part(3), code)
    peer.remember(7)
    code.value = 5
    stage, came = Part(0), Part(0)
    back = arriving(Counted(), stage, came, [])
    back.adopt(7, peer.whole())
    assert (stage.value, came.value, came.step) == (3, 4, 7)
    # Who was ahead goes back with model and optimizer, and its training code goes on.
    ahead, stage, own = Counted(8), Part(0), Part(9)
    settled(ahead, stage, own).adopt(7, peer.state())
    assert (stage.value, own.value, [step for step, _ in ahead.adopted]) == (3, 9, [7])
    # When the next step is made somewhere, who has not heard of it needs nothing.
    versions.newest = 8
    assert peer.state() == {}
    peer.remember(8)
    versions.oldest = 8
    assert peer.whole()["first/code"] is not None
    peer.remember(9)
    versions.newest = versions.oldest = 7
    assert peer.state()["first/code"] is not None
    peer.remember(10)
    assert peer.state() == {}
