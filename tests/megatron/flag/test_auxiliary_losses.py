"""What experts report beside the loss is the mean over all pipelines, whoever did their work, and however often."""

import pytest
import torch
from megatron.core.transformer.moe import moe_utils

from recycle.megatron.flag.steps import auxiliary_losses
from recycle.megatron.flag.steps.auxiliary_losses import TRACKER, AuxiliaryLosses, reported, take_over
from recycle.megatron.shared.release import module_with
from recycle.runtime.net.network import Alone

LAYERS = 2


class WithAnother(Alone):
    """A group with a peer that has put in as much."""

    def sum(self, tensor):
        tensor *= 2


def tracker():
    """Megatron's, in the releases that have one."""
    logging = module_with(TRACKER)
    return None if logging is None else logging.get_moe_metrics_tracker()


@pytest.fixture(autouse=True)
def nothing_reported():
    known = moe_utils.get_moe_layer_wise_logging_tracker() if tracker() is None else tracker().metrics
    known.clear()
    yield
    known.clear()


def add(amount, layer=1):
    add_up = moe_utils.save_to_aux_losses_tracker if tracker() is None else tracker().record
    add_up("load_balancing_loss", torch.tensor(amount), layer, LAYERS)


def print_line():
    if tracker() is None:
        moe_utils.clear_aux_losses_tracker()
    else:
        tracker().clear()


def values():
    return reported()["load_balancing_loss"].tolist()


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


def test_what_is_made_again_for_others_that_are_behind_does_not_count():
    losses = AuxiliaryLosses(pipelines=1)
    losses.begin(0)
    add(2.0)
    losses.share(Alone())
    print_line()
    losses.begin(1)
    add(3.0)
    with losses.settled():
        for amount in (7.0, 2.0):
            losses.begin(0)
            add(amount)
        losses.share(Alone())
    assert values() == [3.0, 0.0]
    losses.begin(1)
    add(4.0)
    losses.share(Alone())
    assert values() == [4.0, 0.0]


def test_what_was_printed_is_not_counted_again():
    losses = AuxiliaryLosses(pipelines=2)
    losses.begin(0)
    add(2.0)
    losses.share(Alone())
    print_line()
    losses.begin(1)
    add(6.0)
    losses.share(Alone())
    assert values() == [3.0, 0.0]


def test_who_comes_back_adds_to_what_its_peer_has_handed_over():
    add(1.0)
    handed_over = {"load_balancing_loss": torch.tensor([3.0, 4.0]), "z_loss": torch.tensor([5.0, 0.0])}
    take_over(handed_over)
    add(2.0, layer=2)
    assert values() == [3.0, 6.0]
    assert reported()["z_loss"].tolist() == [5.0, 0.0]
    assert handed_over["load_balancing_loss"].tolist() == [3.0, 4.0]


def test_a_place_for_what_came_through_host_memory_is_where_layers_add_up(monkeypatch):
    """A device without memory is in the place of a GPU: it does not mix with the CPU either."""
    monkeypatch.setattr(auxiliary_losses, "own_device", lambda: torch.device("meta"))
    take_over({"load_balancing_loss": torch.tensor([3.0, 4.0])})
    add_up = moe_utils.save_to_aux_losses_tracker if tracker() is None else tracker().record
    add_up("load_balancing_loss", torch.ones([], device="meta"), 1, LAYERS)
    assert reported()["load_balancing_loss"].device.type == "meta"
