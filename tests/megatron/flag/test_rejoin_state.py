"""Only before an iteration can one be let in who has nothing, and then it gets all that there is."""

import torch

from recycle.megatron.flag.state.rejoin_state import RejoinState


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


def test_who_comes_back_takes_over_everything_once_and_is_like_all_others_then():
    peer = RejoinState(Counted(), Part(3), Part(4), None)
    versions, stage, code, arrived = Counted(), Part(0), Part(0), []
    back = RejoinState(versions, stage, code, arrived.append)
    assert back.admits()
    with peer.opened():
        back.adopt(7, peer.state())
    assert (stage.value, code.value, code.step, arrived, versions.adopted) == (3, 4, 7, [7], [])
    assert not back.admits()
    back.adopt(8, peer.state())
    assert (stage.value, arrived, versions.adopted) == (3, [7], [(8, {})])


def test_between_two_boundaries_nobody_is_let_in_and_peers_are_given_what_they_need():
    door = RejoinState(Counted(), Part(3), Part(4), None)
    assert not door.admits()
    assert door.state() == {}
    with door.opened():
        assert door.admits()
        assert set(door.state()) == {"stage/value", "code/value"}
    assert not door.admits()
    assert door.state() == {}


def test_who_has_to_go_back_while_one_is_let_in_gives_it_what_was_known_there():
    versions, code = Counted(7), Part(4)
    peer = RejoinState(versions, Part(3), code, None)
    peer.remember(7)
    code.value, versions.newest, versions.oldest = 5, 8, 8
    peer.remember(8)
    came = Part(0)
    with peer.opened():
        versions.newest = versions.oldest = 7
        RejoinState(Counted(), Part(0), came, [].append).adopt(7, peer.state())
    assert (came.value, came.step) == (4, 7)


def test_what_is_remembered_can_be_taken_over_until_two_more_iterations_are_done():
    versions, code = Counted(), Part(4)
    peer = RejoinState(versions, Part(3), code, None)
    peer.remember(7)
    code.value = 5
    stage, came = Part(0), Part(0)
    back = RejoinState(Counted(), stage, came, [].append)
    back.adopt(7, peer.whole())
    assert (stage.value, came.value, came.step) == (3, 4, 7)
    # Who was ahead goes back with model and optimizer, and its training code goes on.
    ahead, stage, own = Counted(8), Part(0), Part(9)
    RejoinState(ahead, stage, own, None).adopt(7, peer.state())
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
