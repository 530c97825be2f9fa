"""What lies on a device goes through host memory, and what lies in host memory goes as it is."""

from types import SimpleNamespace

import torch

from recycle.runtime.net.network import Alone, Several
from recycle.runtime.net.staged.network import StagedGroup, StagedLink, is_on_device
from recycle.runtime.net.transfer_key import STATE


class Carried:
    """A link and a group that keep what they were given, and fill it when it is waited for."""

    def __init__(self):
        self.given = []

    def send(self, tensor, _):
        self.given.append(tensor)
        return Several()

    def receive(self, tensor, _):
        self.given.append(tensor)
        return SimpleNamespace(wait=lambda: tensor.fill_(7))

    def start(self, _, tensor):
        return self.receive(tensor, None)


def test_a_tensor_on_a_device_changes_when_it_was_waited_for_and_not_before():
    inner, tensor = Carried(), torch.ones(2, 3).t()
    for start in (
        lambda: StagedLink(inner, lambda _: True).receive(tensor, STATE),
        lambda: StagedGroup(inner, lambda _: True).start_sum(tensor),
    ):
        tensor.fill_(1)
        under_way = start()
        inner.given[-1].fill_(3)
        assert torch.equal(tensor, torch.ones(3, 2))
        under_way.wait()
        assert torch.equal(tensor, torch.full((3, 2), 7.0))
        assert inner.given[-1].is_contiguous()


def test_what_is_sent_is_what_the_device_held_when_it_was_started():
    inner, tensor = Carried(), torch.arange(4.0)
    StagedLink(inner, lambda _: True).send(tensor, STATE)
    tensor.zero_()
    assert inner.given[0].tolist() == [0, 1, 2, 3]


def test_what_lies_in_host_memory_is_not_copied():
    inner, tensor = Carried(), torch.ones(4)
    link, group = StagedLink(inner, is_on_device), StagedGroup(inner, is_on_device)
    link.send(tensor, STATE)
    link.receive(tensor, STATE)
    group.start_sum(tensor)
    assert all(each is tensor for each in inner.given)
    assert is_on_device(torch.empty(1, device="meta"))


def test_a_group_of_one_leaves_a_tensor_as_it_is():
    tensor = torch.arange(3.0)
    StagedGroup(Alone(), lambda _: True).sum(tensor)
    assert tensor.tolist() == [0, 1, 2]
