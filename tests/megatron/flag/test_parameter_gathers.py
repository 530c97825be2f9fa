"""Parameters that are given to peers while the next forward pass begins."""

from types import SimpleNamespace

import pytest
import torch

from recycle.job import Server
from recycle.megatron.flag.steps.sharded_optimizer import ParameterGathers
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.network import Share, Transfer
from recycle.runtime.net.stop_line import NO_LINE, StopLine

SIZE = 4
HERE, THERE = Server(0, 0), Server(1, 0)


class Arriving(Transfer):
    """A gather that brings ones, or fails; a device may have what is computed next come after it."""

    def __init__(self, tensor, log, *, broken, device):
        self.tensor, self.log, self.broken, self.device = tensor, log, broken, device

    def precede(self):
        if not self.device:
            return super().precede()
        self.log.append("precede")
        return False

    def wait(self):
        self.log.append("wait")
        if self.broken:
            raise ViewBroken("a peer is gone")
        self.tensor.fill_(1)


class Layers:
    """Two layers, each of one parameter that is alone in its bucket; Megatron's first bucket has the last layer."""

    def __init__(self, *, overlaps=True, line=NO_LINE, broken=False, device=False):
        self.log = []
        self.model = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(2)))
        length = SIZE * SIZE
        values = torch.zeros(2 * length)
        buckets = []
        for number, layer in enumerate(reversed(self.model)):
            place = slice(number * length, (number + 1) * length)
            layer.weight.data = values[place].view(SIZE, SIZE)
            buckets.append(SimpleNamespace(offset=place.start, param_data=values[place], params={layer.weight}))

        def start_spread(tensor, shares):
            self.log.append(("start", shares))
            return Arriving(tensor, self.log, broken=broken, device=device)

        self.gathers = ParameterGathers(self.model, overlaps=overlaps)
        self.gathers.enter(SimpleNamespace(start_spread=start_spread, line=line))
        cut = length // 2
        places = [slice(start, start + cut) for start in range(0, 2 * length, cut)]
        shares = [Share(place, (holder,)) for place, holder in zip(places, (HERE, THERE) * 2, strict=True)]
        self.gathers.start(SimpleNamespace(param_data=values, buckets=buckets), shares)
        self.started = [("start", [Share(slice(0, cut), (HERE,)), Share(slice(cut, length), (THERE,))])] * 2


def test_each_module_waits_for_its_own_parameters_alone():
    layers = Layers()
    first, last = layers.model
    assert layers.log == layers.started
    first(torch.ones(1, SIZE))
    assert layers.log == [*layers.started, "wait"]
    assert first.weight.sum() == SIZE * SIZE
    assert last.weight.sum() == 0
    last(torch.ones(1, SIZE))
    layers.model(torch.ones(1, SIZE))
    layers.gathers.wait()
    assert layers.log == [*layers.started, "wait", "wait"]


def test_who_looks_at_all_parameters_waits_for_all():
    layers = Layers(overlaps=False)
    layers.model(torch.ones(1, SIZE))
    assert layers.log == layers.started
    layers.gathers.wait()
    assert all(each.sum() == SIZE * SIZE for each in layers.model.parameters())


def test_where_a_device_has_a_module_come_after_them_they_are_waited_for_at_the_end():
    layers = Layers(device=True)
    layers.model(torch.ones(1, SIZE))
    layers.model(torch.ones(1, SIZE))
    assert layers.log == [*layers.started, "precede", "precede"]
    layers.gathers.wait()
    assert layers.log == [*layers.started, "precede", "precede", "wait", "wait"]


def test_a_gather_that_fails_ends_the_forward_pass_and_all_other_gathers():
    layers = Layers(broken=True)
    with pytest.raises(ViewBroken):
        layers.model(torch.ones(1, SIZE))
    layers.gathers.wait()
    assert layers.log == [*layers.started, "wait"]


def test_within_a_list_of_several_ranks_it_ends_at_their_stop_line():
    heard = []
    line = StopLine(lambda: None, lambda *_: None, heard.append, 1.0)
    layers = Layers(broken=True, line=line)
    layers.model.register_forward_hook(lambda *_: layers.log.append("computed"))
    with pytest.raises(ViewBroken), line.list():
        layers.model(torch.ones(1, SIZE))
    assert layers.log == [*layers.started, "wait", "computed"]
    assert len(heard) == 1


def test_gathers_of_the_last_view_are_forgotten():
    layers = Layers(broken=True)
    layers.gathers.enter(SimpleNamespace(line=NO_LINE))
    layers.model(torch.ones(1, SIZE))
    layers.gathers.wait()
    assert layers.log == layers.started
