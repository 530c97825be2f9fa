"""What experts report beside the loss is the mean over all pipelines, whoever did their work, and however often."""

import pytest
import torch
from megatron.core.transformer.moe.moe_utils import clear_aux_losses_tracker, save_to_aux_losses_tracker

from recycle.megatron.flag.auxiliary_losses import AuxiliaryLosses, reported
from recycle.runtime.net.network import Alone

LAYERS = 2


class WithAnother(Alone):
    """A group with a peer that has put in as much."""

    def sum(self, tensor):
        tensor *= 2


@pytest.fixture(autouse=True)
def nothing_reported():
    reported().clear()
    yield
    reported().clear()


def add(amount, layer=1):
    save_to_aux_losses_tracker("load_balancing_loss", torch.tensor(amount), layer, LAYERS)


def values():
    return reported()["load_balancing_loss"]["values"].tolist()


def test_who_does_the_work_of_all_reports_the_mean():
    losses = AuxiliaryLosses(pipelines=4)
    losses.begin(0)
    add(8.0)
    losses.share(Alone())
    assert values() == [2.0, 0.0]
    losses.begin(1)
    add(4.0)
    add(2.0, layer=2)
    losses.share(WithAnother())
    assert values() == [4.0, 1.0]


def test_an_iteration_that_is_made_again_counts_once():
    losses = AuxiliaryLosses(pipelines=1)
    for amount in (1.0, 2.0):
        losses.begin(0)
        add(amount)
    losses.share(Alone())
    assert values() == [2.0, 0.0]
    for amount in (5.0, 6.0):
        losses.begin(1)
        add(amount)
        losses.share(Alone())
    assert values() == [8.0, 0.0]


def test_what_was_printed_is_not_counted_again():
    losses = AuxiliaryLosses(pipelines=2)
    losses.begin(0)
    add(2.0)
    losses.share(Alone())
    clear_aux_losses_tracker()
    losses.begin(1)
    add(6.0)
    losses.share(Alone())
    assert values() == [3.0, 0.0]
