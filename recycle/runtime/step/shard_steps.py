"""The distributed optimizer: each peer of a stage holds some shards of the optimizer's state, and steps those.

All holders of a shard get the sum of its gradients, so each makes its step, and all come to the same bits. Its owner
gives the stepped parameters to the others. What is in shards are the moments; parameters and what is counted (the
steps, and the bounds of exact sums) are with everybody.

An optimizer in shards is ZeRO's idea (Rajbhandari et al., SC'20), a mirror that makes the same step from the same
gradient Checkmate's (NSDI'26).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from recycle.runtime.net.network import Network, Share
from recycle.runtime.step.main_parameters import EVERYTHING, PRECISION, MainParameters
from recycle.runtime.step.shared_sums import find_holders, spread
from recycle.state.shards import Piece, cut_layers


class PeerSteps:
    """How a server's part in an optimizer step is made, and what it holds of the optimizer's state for it.

    These are of a server whose peers all hold all of their stage's state, and make the same steps.

    Args:
        main: what is stepped.
        optimizer: of it.
    """

    def __init__(self, main: MainParameters, optimizer: torch.optim.Optimizer) -> None:
        self._main = main
        self._optimizer = optimizer

    shares: Sequence[Sequence[Share]] = ()
    """Those of each parameter that the peers of a view step; none if each steps all."""

    def connect(self, network: Network) -> None:
        """Work with the peers of a view from now on."""

    def parts(self, gradients: Sequence[torch.Tensor]) -> Mapping[int, Sequence[torch.Tensor]]:
        """What this server steps with, of gradients of all parameters, by shard: each has a part of every gradient."""
        return {0: gradients}

    def begin(self) -> None:
        """A step is about to be made."""

    def make(self, which: slice) -> None:
        """Step with the gradients in use. All peers call it, and have these parameters after it.

        Args:
            which: of the main parameters; those of some of the server's chunks.

        Raises:
            ViewBroken: one of them is gone; the state is of no version then.
        """
        self._main.step(self._optimizer, which)

    def undo(self) -> None:
        """The state is again what it was when the last step began."""

    def adopt(self, *, whole: bool) -> None:
        """The state was replaced.

        Args:
            whole: whether that was the whole one, and not only what all peers hold.
        """


STEP, BOUND = "step", "bound"
COUNTED = (STEP, BOUND)
"""What the optimizer's state has for a whole parameter, and not for each of its elements."""


class ShardRule(NamedTuple):
    """How an optimizer is cut into shards.

    Attributes:
        layers: of how many of the main parameters, one after another, each layer consists.
        shards: how many there are: D of the full job.
    """

    layers: tuple[int, ...]
    shards: int


class ShardSteps(PeerSteps):
    """Steps of the shards that a server holds; it is Sharded.

    Args:
        main: the parameters of the stage, all in full precision.
        optimizer: made for them; from now on it steps pieces of them.
        rule: how they are cut.

    Attributes:
        count: how many shards there are.
        layers: of how many of the main parameters each layer consists.
        held: those of the present version that are here.
        before: those of the version before the last step that are here.
    """

    def __init__(self, main: MainParameters, optimizer: torch.optim.Optimizer, rule: ShardRule) -> None:
        super().__init__(main, optimizer)
        self.count = rule.shards
        self.layers = rule.layers
        # Of the first version there is nothing to hold.
        self.held = self.before = frozenset(range(rule.shards))
        self._parameters = list(main)
        assert all(each.dtype == PRECISION for each in self._parameters), "main parameters are in full precision"
        assert sum(rule.layers) == len(self._parameters), f"{rule}, and there are {len(self._parameters)} parameters"
        following = iter(self._parameters)
        sizes = [[next(following).numel() for _ in range(length)] for length in rule.layers]
        self._shards = [
            {piece: torch.nn.Parameter(torch.empty(0)) for piece in pieces} for pieces in cut_layers(sizes, rule.shards)
        ]
        group_of = {each: place for place, group in enumerate(optimizer.param_groups) for each in group["params"]}
        self._group_of = [group_of[each] for each in self._parameters]
        self._wanted = self.held

    def connect(self, network: Network) -> None:
        """See PeerSteps."""
        self._network, holders = network, find_holders(network, self.count)
        self._wanted = frozenset(shard for shard, each in enumerate(holders) if network.server in each)
        shares: list[list[Share]] = [[] for _ in self._parameters]
        for pieces, each in zip(self._shards, holders, strict=True):
            for piece in pieces:
                shares[piece.parameter].append(Share(slice(piece.start, piece.end), each))
        self.shares = shares
        network.connect_shares(holders)

    def parts(self, gradients: Sequence[torch.Tensor]) -> Mapping[int, Sequence[torch.Tensor]]:
        """See PeerSteps."""
        found = {shard: [each.new_empty(0) for each in gradients] for shard in sorted(self._wanted)}
        for shard, parts in found.items():
            for piece in self._shards[shard]:
                parts[piece.parameter] = _cut(gradients[piece.parameter], piece)
        return found

    def begin(self) -> None:
        """See PeerSteps: all peers have what they need, so that what is others' can go."""
        assert self._wanted <= self.held, f"shards {sorted(self._wanted - self.held)} have not come"
        for shard in self.held - self._wanted:
            self._forget(shard)
        self.held = self.before = self._wanted

    def make(self, which: slice) -> None:
        """See PeerSteps."""
        assert which == EVERYTHING, "shards lie across the chunks of a server"
        groups = self._optimizer.param_groups
        for group in groups:
            group["params"] = []
        for shard in sorted(self.held):
            for piece, part in self._shards[shard].items():
                whole = self._parameters[piece.parameter]
                assert whole.grad is not None
                part.data = _cut(whole.data, piece)
                part.grad = _cut(whole.grad, piece)
                groups[self._group_of[piece.parameter]]["params"].append(part)
        self._optimizer.step()
        for each in self._parameters:
            state = self._optimizer.state[each]
            state[STEP] = state.get(STEP, torch.zeros(())) + 1
        self._spread()
        self._main.copy_back()

    def undo(self) -> None:
        """See PeerSteps."""
        self.held = self.before

    def adopt(self, *, whole: bool) -> None:
        """See PeerSteps."""
        for shard in range(self.count):
            self._forget(shard)
        self.held = frozenset()
        if not whole:
            return
        moments = [
            {key: value for key, value in self._optimizer.state.get(each, {}).items() if key not in COUNTED}
            for each in self._parameters
        ]
        for shard, pieces in enumerate(self._shards):
            keys = [key for piece in pieces for key in moments[piece.parameter]]
            flat = {
                key: torch.cat([_cut(moments[piece.parameter][key], piece) for piece in pieces])
                for key in dict.fromkeys(keys)
            }
            self.take(shard, flat)
        for each, names in zip(self._parameters, moments, strict=True):
            for key in names:
                del self._optimizer.state[each][key]

    def give(self, shard: int) -> Mapping[str, torch.Tensor]:
        """See Sharded."""
        states = [self._optimizer.state.get(part, {}) for part in self._shards[shard].values()]
        keys = dict.fromkeys(key for state in states for key in state if key not in COUNTED)
        return {key: torch.cat([state[key] for state in states]) for key in keys}

    def pieces(self, shard: int) -> Mapping[str, torch.Tensor]:
        """See Sharded."""
        held = [
            self._optimizer.state.get(part, {}) for each in sorted(self.held) for part in self._shards[each].values()
        ]
        keys = sorted({key for state in held for key in state if key not in COUNTED})
        found = {}
        for key in keys:
            for place, (piece, part) in enumerate(self._shards[shard].items()):
                state = self._optimizer.state.get(part, {}) if shard in self.held else {}
                outline = torch.empty(piece.end - piece.start, dtype=PRECISION, device="meta")
                found[f"{key}/{place}"] = state.get(key, outline)
        return found

    def take_pieces(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Sharded."""
        parts: dict[str, list[torch.Tensor]] = {}
        for name, each in state.items():
            parts.setdefault(name.partition("/")[0], []).append(each)
        self.take(shard, {key: torch.cat(found) for key, found in parts.items()})

    def take(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Sharded."""
        pieces = self._shards[shard]
        lengths = [piece.end - piece.start for piece in pieces]
        for piece, part in pieces.items():
            known = self._optimizer.state.get(self._parameters[piece.parameter], {})
            self._optimizer.state[part] = {key: known[key].clone() for key in (STEP,) if key in known}
        for key, flat in state.items():
            for (piece, part), moment in zip(pieces.items(), torch.split(flat, lengths), strict=True):
                # It may have come through host memory.
                place = self._parameters[piece.parameter].device
                self._optimizer.state[part][key] = moment.to(place, copy=True)
        self.held |= {shard}

    def whole_state(
        self, others: Mapping[int, Mapping[str, torch.Tensor]]
    ) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """The optimizer's state as one without shards has it, by main parameter.

        Args:
            others: the shards that are not here.
        """
        states: dict[torch.Tensor, dict[str, torch.Tensor]] = {
            each: dict(self._optimizer.state.get(each, {})) for each in self._parameters
        }
        for shard, pieces in enumerate(self._shards):
            lengths = [piece.end - piece.start for piece in pieces]
            for key, flat in (others[shard] if shard in others else self.give(shard)).items():
                for piece, moment in zip(pieces, torch.split(flat, lengths), strict=True):
                    parameter = self._parameters[piece.parameter]
                    whole = states[parameter].setdefault(key, torch.empty_like(parameter.data))
                    _cut(whole, piece).copy_(moment)
        return states

    def _forget(self, shard: int) -> None:
        for part in self._shards[shard].values():
            self._optimizer.state.pop(part, None)

    def _spread(self) -> None:
        """Give the parameters of the owned shards to all peers, and take theirs."""
        whole = (each.data.view(-1) for each in self._parameters)
        spread(self._network, list(zip(whole, self.shares, strict=True)))


def _cut(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The elements of a piece, where they lie."""
    return whole.view(-1)[piece.start : piece.end]
