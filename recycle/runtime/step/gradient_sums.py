"""The gradients of a server's stages in an iteration: collected here, summed over the peers, and ready to step with."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from recycle.runtime.net.network import Group, Network, Reduction, Share
from recycle.runtime.step.exact_sums import ExactSums
from recycle.runtime.step.main_parameters import EVERYTHING, MainParameters
from recycle.runtime.step.shared_sums import start_shared_sum


class GradientSums:
    """Collects the gradients of micro-batches, and sums them over the peers of a server.

    Args:
        main: the server's main parameters, whose gradients these are.
        keep: whether the reduced gradients stay as they are while those of the next iteration are collected.
        addends: where sums are exact, the most that each element of a gradient gets in an iteration; 0 where not.

    Attributes:
        collected: where gradients are added up.
        bounds: of the addends that exact sums have seen last, as exponents of two, by parameter; empty where sums are
            not exact. Together with the parameters they decide what follows.
    """

    def __init__(self, main: MainParameters, keep: bool, addends: int) -> None:
        self.collected = self._reduced = FlatGradients(main)
        if keep or addends:
            self._reduced = FlatGradients(main)
        self.bounds: list[int] = []
        self._main = main
        self._shares: Sequence[Sequence[Share]] = ()
        # By the place of a stage's first parameter.
        self._under_way: dict[int, list[Reduction]] = {}
        self._exact = ExactSums(self.collected.views, addends) if addends else None
        main.use(self.collected.views)

    def connect(self, network: Network, shares: Sequence[Sequence[Share]]) -> None:
        """Sum over the peers of a view from now on.

        Args:
            network: of the server.
            shares: those of each main parameter, if each peer needs the sums of some only; empty if all need all.
        """
        self._network, self._shares = network, shares

    def begin(self, bounds: Sequence[int]) -> None:
        """Begin an iteration with gradients of zero.

        Args:
            bounds: of the addends; nothing where sums are not exact.
        """
        self._under_way.clear()
        self.collected.zero()
        self._main.use(self.collected.views)
        if self._exact is not None:
            self._exact.start(bounds)

    def collect(self) -> None:
        """A micro-batch's gradients, or a part of them, were added."""
        if self._exact is not None:
            self._exact.collect()

    def start(self, peers: Group, which: slice) -> None:
        """Start to sum a stage's gradients over its peers, if that was not started.

        Args:
            peers: over whom.
            which: of the main parameters are the stage's; no more is collected for them.
        """
        if which.start not in self._under_way:
            if self._exact is None:
                self._under_way[which.start] = [
                    self._start_sum(peers, each, which) for each in self.collected.part(which)
                ]
            else:
                totals, greatest = self._exact.part(which)
                self._under_way[which.start] = [self._start_sum(peers, totals, which), peers.start_maximum(greatest)]

    def _start_sum(self, peers: Group, part: torch.Tensor, which: slice) -> Reduction:
        """Start to sum what some parameters have, one after another."""
        if not self._shares:
            return peers.start_sum(part)
        shares: list[Share] = []
        first = 0
        for parameter, own in list(zip(self._main, self._shares, strict=True))[which]:
            for place, holders in own:
                start, end = first + place.start, first + place.stop
                if shares and (shares[-1].place.stop, shares[-1].holders) == (start, holders):
                    start = shares.pop().place.start
                shares.append(Share(slice(start, end), holders))
            first += parameter.numel()
        assert first == len(part), "shares are of one buffer"
        return start_shared_sum(self._network, part, shares)

    def settle(self) -> None:
        """Wait for all sums that were started.

        Raises:
            ConnectionLost: one of the peers is gone.
        """
        for place in list(self._under_way):
            for each in self._under_way.pop(place):
                each.wait()

    def reduce(self, peers: Group, which: slice, divisor: float) -> None:
        """Sum a stage's gradients over its peers, if that was not started, and have the optimizer step with the mean.

        Args:
            peers: over whom.
            which: of the main parameters are the stage's.
            divisor: of the sum.

        Raises:
            ConnectionLost: one of the peers is gone.
        """
        self.start(peers, which)
        for each in self._under_way.pop(which.start):
            each.wait()
        if self._exact is None:
            if divisor > 1:
                for part in self.collected.part(which):
                    part.mul_(1 / divisor)
        else:
            self._exact.mean(divisor, self._reduced.views, which)
            self._main.use(self._reduced.views, which)

    def finish(self) -> bool:
        """All gradients are reduced: keep them, where that is asked for.

        Returns:
            Whether the sums are right: exact ones are not where an addend was above its bound.
        """
        if self._exact is None:
            self.collected, self._reduced = self._reduced, self.collected
        else:
            self.bounds = self._exact.next_bounds()
        self.use_reduced()
        return self._exact is None or self._exact.fits

    @property
    def reduced(self) -> Sequence[torch.Tensor]:
        """The reduced gradients, one per main parameter."""
        return self._reduced.views

    def use_reduced(self) -> None:
        """Have the optimizer step with the reduced gradients."""
        self._main.use(self._reduced.views)

    def drop_shares_of_others(self, parameter: torch.nn.Parameter) -> None:
        """Leave no reduced gradient of a parameter of the model where another peer is the first holder."""
        number = self._main.number(parameter)
        for place, (first, *_) in self._shares[number]:
            if first != self._network.server:
                self._reduced.views[number].view(-1)[place] = 0

    def scale(self, factor: float) -> None:
        """Multiply the reduced gradients."""
        self._reduced.scale(factor)

    def are_finite(self, which: slice = EVERYTHING) -> bool:
        """Whether the gradients that are reduced by now are finite numbers, where sums are not exact.

        Args:
            which: of the main parameters, which follow each other.
        """
        return self.collected.are_finite(which)

    def squares(self, parts: Mapping[int, Sequence[torch.Tensor]], fits: bool, first: bool) -> dict[int, list[float]]:
        """This rank's part of the squared norm of each stage, by shard; infinite where it is no finite number.

        Args:
            parts: what the server has of ``reduced``, by shard.
            fits: what ``finish`` returned; sums that are not right have no norm.
            first: whether this is the first rank of its server.
        """
        infinite = self._exact is not None and not self._exact.finite

        def squared(stage: Sequence[torch.Tensor]) -> float:
            return math.inf if infinite else square(stage) if fits else 0.0

        return {shard: [squared(each) for each in self._main.counted(part, first)] for shard, part in parts.items()}

    def parts(self, which: slice = EVERYTHING) -> tuple[torch.Tensor, ...]:
        """What a step is made from, for who follows it: the reduced gradients and the bounds.

        Args:
            which: of the main parameters, which follow each other.
        """
        return (*self._reduced.part(which), torch.tensor(self.bounds[which], dtype=torch.int64))

    def take(self, parts: Sequence[torch.Tensor]) -> None:
        """Take what a peer's ``parts`` gave."""
        *gradients, bounds = parts
        for own, other in zip(self._reduced.buffers, gradients, strict=True):
            own.copy_(other)
        self.bounds = bounds.tolist()
        self.use_reduced()


class FlatGradients:
    """Room for all gradients of a stage, in one buffer per type and device, so that one reduction carries them.

    Args:
        parameters: whose gradients.

    Attributes:
        buffers: one per type and device.
        views: the part of each parameter, in the parameters' order and of their shapes.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        members = list(parameters)
        sizes: dict[tuple[torch.dtype, torch.device], int] = {}
        for each in members:
            kind = each.dtype, each.device
            sizes[kind] = sizes.get(kind, 0) + each.numel()
        room = {kind: torch.zeros(size, dtype=kind[0], device=kind[1]) for kind, size in sizes.items()}
        self.buffers = list(room.values())
        self.views: list[torch.Tensor] = []
        self._places: list[tuple[torch.Tensor, int, int]] = []
        places = dict.fromkeys(sizes, 0)
        for each in members:
            kind = each.dtype, each.device
            place = places[kind]
            places[kind] = end = place + each.numel()
            self._places.append((room[kind], place, end))
            self.views.append(room[kind][place:end].view_as(each))

    def part(self, which: slice) -> list[torch.Tensor]:
        """The part of each buffer that belongs to some parameters that follow each other."""
        ends: dict[int, tuple[torch.Tensor, int, int]] = {}
        for buffer, start, end in self._places[which]:
            _, first, _ = ends.get(id(buffer), (buffer, start, end))
            ends[id(buffer)] = buffer, first, end
        return [buffer[first:end] for buffer, first, end in ends.values()]

    def are_finite(self, which: slice) -> bool:
        """Whether every value of some parameters that follow each other is a finite number."""
        return all(
            bool(torch.isfinite(torch.linalg.vector_norm(part, math.inf))) for part in self.part(which) if len(part)
        )

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        for buffer in self.buffers:
            buffer.mul_(factor)

    def zero(self) -> None:
        """Set every gradient to zero."""
        for buffer in self.buffers:
            buffer.zero_()


def square(gradients: Iterable[torch.Tensor]) -> float:
    """The sum of all squares, in double precision."""
    return math.fsum(each.to(torch.float64, copy=True).square_().sum().item() for each in gradients)
