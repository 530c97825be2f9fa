"""Only before an iteration can one be let in who has nothing, and then it gets all that there is."""

import torch

from recycle.megatron.flag.doorway import Doorway


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

    newest = oldest = 7

    def __init__(self):
        self.adopted = []

    def state(self):
        return {}

    def adopt(self, step, state):
        self.adopted.append((step, dict(state)))


def test_who_comes_back_takes_over_everything_once_and_is_like_all_others_then():
    peer = Doorway(Counted(), Part(3), Part(4), None)
    versions, stage, code, arrived = Counted(), Part(0), Part(0), []
    back = Doorway(versions, stage, code, arrived.append)
    assert back.admits()
    with peer.opened(7):
        back.adopt(7, peer.state())
    assert (stage.value, code.value, code.step, arrived, versions.adopted) == (3, 4, 7, [7], [])
    assert not back.admits()
    back.adopt(8, peer.state())
    assert (stage.value, arrived, versions.adopted) == (3, [7], [(8, {})])


def test_between_two_boundaries_nobody_is_let_in_and_peers_are_given_what_they_need():
    door = Doorway(Counted(), Part(3), Part(4), None)
    assert not door.admits()
    assert door.state() == {}
    with door.opened(7):
        assert door.admits()
        assert set(door.state()) == {"stage/value", "code/value"}
    assert not door.admits()
    assert door.state() == {}
