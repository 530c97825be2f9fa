"""Megatron's distributed optimizer, once for each shard that a server holds: its own, and those that it mirrors.

The layout is that of the launch, whichever servers live. An optimizer for another shard is made as Megatron made the
server's own, as if the server had another rank among its peers: what is written of a shard is what its rank would have
written.

Where several ranks of a server have the same parameters, Megatron cuts these into as many shards as all servers of the
stage have such ranks. Then a shard is here the part of the ranks with one number, of which there is one in each server.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple

import torch
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from recycle.job import Server
from recycle.megatron.flag.steps.whole_stage import COUNT, read_group_steps, write_group_steps
from recycle.megatron.shared.patching import replace
from recycle.runtime.net.network import Share

ROUND, STEPS, PARAMETER, INNER = "round", "steps", "parameter", "optimizer/"
"""How the parts of a shard are called under which it travels."""

WRITTEN = ("param", "exp_avg", "exp_avg_sq")
"""What Megatron writes of each parameter."""


class MadeOf(NamedTuple):
    """What a distributed optimizer was made of.

    Attributes:
        groups: of its inner optimizer, with the parameters whole.
        positional: the other arguments.
        keywords: likewise.
    """

    groups: list[dict[str, Any]]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]


def keep_what_optimizers_are_made_of() -> None:
    """Have each distributed optimizer that Megatron makes from now on know what it was made of."""
    own_init = DistributedOptimizer.__init__

    @wraps(own_init)
    def init(self: Any, optimizer: Any, *positional: Any, **keywords: Any) -> None:
        # Megatron puts cut parameters in the place of the whole ones.
        groups = [] if optimizer is None else _copied(optimizer.param_groups)
        own_init(self, optimizer, *positional, **keywords)
        self.recycle_made_of = MadeOf(groups, positional, keywords)

    replace(DistributedOptimizer, "__init__", init)


class ShardOptimizers:
    """The optimizers of the shards that a server holds.

    All are stepped in rounds, one an iteration. A shard says which was its last, so that one that comes from a peer in
    the middle of a round is stepped once and not twice.

    Args:
        own: Megatron's, which has the shard of this server's rank.
        count: how many shards there are: as many as the stage has servers.

    Attributes:
        is_divided: whether it steps experts that are divided among the ranks of a server.
    """

    def __init__(self, own: Any, count: int) -> None:
        groups = (own.data_parallel_group, *(each.data_parallel_group for each in own.buffers))
        self._own = own
        self._groups = list({id(each): each for each in groups}.values())
        self._size: int = own.data_parallel_group.size()
        self._of_server: int = self._size // count
        self._among_own: int = own.data_parallel_group.rank() % self._of_server
        number = own.data_parallel_group.rank() // self._of_server
        self.is_divided = any(is_divided(each) for group in own.recycle_made_of.groups for each in group["params"])
        self._made: dict[int, Any] = {number: own}
        self._rounds = {number: 0}

    @property
    def held(self) -> frozenset[int]:
        """The shards that are here."""
        return frozenset(self._rounds)

    def keep(self, shards: Collection[int]) -> None:
        """Forget all shards but some."""
        for shard in self.held.difference(shards):
            del self._rounds[shard]
            if self._made[shard] is not self._own:
                del self._made[shard]

    @torch.no_grad()
    def give(self, shard: int) -> dict[str, torch.Tensor]:
        """A shard, by name: its main parameters, their moments, its last round, and what its groups have counted."""
        parts, inner = _parts(self._made[shard]), self._made[shard].optimizer
        state = {ROUND: torch.tensor(self._rounds[shard]), STEPS: read_group_steps(inner)}
        if not parts:
            return state
        states = [inner.state.get(part, {}) for part in parts]
        state[PARAMETER] = torch.cat([part.detach() for part in parts])
        for name, value in states[0].items():
            # What is counted is the same for all.
            state[f"{INNER}{name}"] = torch.cat([each[name] for each in states]) if value.dim() else value
        return state

    def outline(self, shard: int) -> dict[str, torch.Tensor]:
        """The names and shapes of what ``give`` gives of any shard, also of one that is not here; without a content."""
        length = sum(
            max(0, min(end, place.stop) - max(start, place.start))
            for buffer in self._own.buffers
            for place in map(self.part_of, self._cut(buffer, shard))
            for start, end, _ in buffer.param_index_map.values()
        )
        groups = len(self._own.optimizer.param_groups)
        found = {
            ROUND: torch.empty((), dtype=torch.int64, device="meta"),
            STEPS: torch.empty(groups, dtype=torch.int64, device="meta"),
        }
        if length:
            found[PARAMETER] = torch.empty(length, dtype=torch.float32, device="meta")
            # What inner optimizers know of one of their parts: of all they know the same.
            made = [self._made[each].optimizer for each in sorted(self.held)]
            known: Mapping[str, torch.Tensor] = next((own for each in made for own in each.state.values() if own), {})
            for name, value in known.items():
                found[f"{INNER}{name}"] = torch.empty(length if value.dim() else (), dtype=value.dtype, device="meta")
        return found

    @torch.no_grad()
    def take(self, shard: int, state: Mapping[str, torch.Tensor]) -> None:
        """Hold a shard from now on, as a peer has given it."""
        if shard not in self._made:
            self._made[shard] = self._make(shard)
        optimizer = self._made[shard]
        parts, inner = _parts(optimizer), optimizer.optimizer
        lengths = [part.numel() for part in parts]
        for part in parts:
            inner.state[part] = {}
        write_group_steps(inner, state[STEPS])
        gradient = self.gradient(shard)
        for key, value in state.items():
            if key in gradient:
                gradient[key].copy_(value)
            if key in (ROUND, STEPS, *gradient):
                continue
            pieces = torch.split(value, lengths) if value.dim() else [value] * len(parts)
            for part, piece in zip(parts, pieces, strict=True):
                if key == PARAMETER:
                    part.copy_(piece)
                else:
                    # It has come through host memory, where counters stay: optimizers look at them there.
                    place = part.device if value.dim() else value.device
                    inner.state[part][key.removeprefix(INNER)] = piece.to(place, copy=True)
        optimizer._copy_main_params_to_model_params()  # noqa: SLF001 - Megatron has no other way to do it alone
        self._rounds[shard] = int(state[ROUND])

    def gradient(self, shard: int) -> dict[str, torch.Tensor]:
        """The parts of a shard's gradient, by name, where they lie."""
        return {
            f"gradient/{number}/{place.start}": buffer.grad_data[place]
            for number, buffer in enumerate(self._own.buffers)
            for place in map(self.part_of, self._cut(buffer, shard))
        }

    @torch.no_grad()
    def counted(self, shards: Collection[int]) -> list[torch.Tensor]:
        """The gradients of some shards that this rank counts in the norm."""
        made = [self._made[each] for each in shards]
        for each in made:
            each._copy_model_grads_to_main_grads()  # noqa: SLF001
        # From 0.19 on, it has the second name.
        names = "get_main_grads_for_grad_norm", "get_grads_for_grad_norm"
        find = next(name for name in names if hasattr(self._own, name))
        return [gradient for each in made for gradient in getattr(each, find)()]

    def shares(self, holders: Sequence[tuple[Server, ...]]) -> Iterator[tuple[Any, list[Share]]]:
        """Megatron's buffers, each with what the holders of every shard have of it, all ranks of a server together."""
        for buffer in self._own.buffers:
            shares = [Share(place, each) for shard, each in enumerate(holders) for place in self._cut(buffer, shard)]
            yield buffer, shares

    def part_of(self, place: slice) -> slice:
        """What this rank has of a share."""
        length = (place.stop - place.start) // self._of_server
        start = place.start + self._among_own * length
        return slice(start, start + length)

    @torch.no_grad()
    def step(self, number: int, norm: float) -> None:
        """Make the step of a round for all shards that have not made it.

        Args:
            number: of the round.
            norm: of the whole model's gradient.
        """
        for shard, done in self._rounds.items():
            if done == number:
                continue
            optimizer = self._follow(shard)
            optimizer._copy_model_grads_to_main_grads()  # noqa: SLF001
            parameters = optimizer.get_parameters()
            # Kernels of apex refuse an empty list.
            if parameters and optimizer.config.clip_grad > 0:
                clip_grad_by_total_norm_fp32(parameters, optimizer.config.clip_grad, norm)
            optimizer.optimizer.step()
            optimizer._copy_main_params_to_model_params()  # noqa: SLF001
            optimizer.zero_grad()
            self._rounds[shard] = number

    def count_main(self, shards: Collection[int]) -> None:
        """Have Megatron count the main parameters of some shards when it takes the norm of all parameters."""
        found = defaultdict(list)
        for optimizer in map(self._made.__getitem__, shards):
            groups = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
            for model, main in chain.from_iterable(zip(*each, strict=True) for each in groups):
                found[model].append(main)
        for parameter in self._rounded():
            parts = found[parameter]
            parameter.main_param = torch.cat(parts) if len(parts) > 1 else next(iter(parts), None)

    def whole_state(self, *, with_gaps: bool) -> dict[Any, Any]:
        """What Megatron's first rank writes of all shards; all are held.

        Of shards of other ranks of the server there are zeros.

        Args:
            with_gaps: whether buckets lie as in their buffer, whose bucket ends are padded. The fully reshardable
                format looks for each parameter at its place in the buffer; format torch has buckets without a gap.
        """
        state: dict[Any, Any] = {"buckets_coalesced": True}
        for number, buffer in enumerate(self._own.buffers):
            length = buffer.numel if with_gaps else buffer.numel_unpadded
            whole = {name: torch.zeros(length, dtype=torch.float32, device="cpu") for name in WRITTEN}
            for shard in sorted(self.held):
                self._write(self._made[shard], number, whole, with_gaps=with_gaps)
            unpadded = {"numel_unpadded": buffer.numel_unpadded}
            state[number] = {each: {**whole, **unpadded} for each in self._own.gbuf_ranges[number]}
        return state

    @staticmethod
    def tensors_of(whole: Mapping[Any, Any]) -> Iterator[torch.Tensor]:
        """What shards are written into, in such a state."""
        for number, buffers in whole.items():
            if isinstance(number, int):
                for each in buffers.values():
                    yield from (each[name] for name in WRITTEN)

    def sharded_state(self, shards: Collection[int], write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """What Megatron's ranks write of some shards in format torch_dist, in one.

        Args:
            shards: which; all are held.
            write: gives what the rank of a shard writes, from its optimizer.
        """
        states = []
        for shard in sorted(shards):
            with self._as_rank(shard):
                states.append(write(self._follow(shard)))
        first, *others = states
        for each in others:
            for number, types in each["param_state"].items():
                if isinstance(number, int):
                    for kind, buckets in types.items():
                        for bucket, parts in zip(first["param_state"][number][kind], buckets, strict=True):
                            bucket.extend(parts)
        result: dict[str, Any] = first
        return result

    def _write(self, optimizer: Any, number: int, whole: Mapping[str, torch.Tensor], *, with_gaps: bool) -> None:
        """Write a shard into what its peers have of a buffer together."""
        (ranges,) = optimizer.gbuf_ranges[number].values()
        first = 0
        for bucket, found in zip(optimizer.buffers[number].buckets, ranges, strict=True):
            for parameter, places in found["param_map"].items():
                tensors = optimizer._get_main_param_and_optimizer_states(parameter)  # noqa: SLF001
                place = places["gbuf_world_in_bucket"]
                for name, target in whole.items():
                    target[first + place.start : first + place.end] = tensors[name].detach()
            first += bucket.param_data.numel() if with_gaps else bucket.numel_unpadded

    def _cut(self, buffer: Any, shard: int) -> Iterator[slice]:
        """Where a shard is in a buffer, on all ranks of a server together; it has a part of each bucket."""
        for bucket in buffer.buckets:
            length = bucket.param_data.numel() // self._size * self._of_server
            yield slice(bucket.offset + shard * length, bucket.offset + (shard + 1) * length)

    def _follow(self, shard: int) -> Any:
        """The optimizer of a shard, with the settings that the training code has given this server's own."""
        optimizer = self._made[shard]
        for group, own in zip(optimizer.optimizer.param_groups, self._own.optimizer.param_groups, strict=True):
            group.update({name: value for name, value in own.items() if name not in ("params", COUNT)})
        return optimizer

    def _make(self, shard: int) -> Any:
        made_of: MadeOf = self._own.recycle_made_of
        own = self._own.optimizer
        inner = object.__new__(type(own))
        inner.__dict__.update(own.__dict__, param_groups=_copied(made_of.groups), state=defaultdict(dict))
        known = {each: each.main_param for each in self._rounded()}
        with self._as_rank(shard):
            made = DistributedOptimizer(inner, *made_of.positional, **made_of.keywords)
        # Megatron says afterwards which ranks have the same parameters.
        vars(made).update({name: each for name, each in vars(self._own).items() if name.endswith("tp_group")})
        for each, main in known.items():
            each.main_param = main
        return made

    def _rounded(self) -> list[Any]:
        """The model's parameters that are not in full precision, of which Megatron knows the main ones."""
        parameters = (each for group in self._own.recycle_made_of.groups for each in group["params"])
        return [each for each in parameters if hasattr(each, "main_param")]

    @contextmanager
    def _as_rank(self, shard: int) -> Iterator[None]:
        """For a while, this server has the rank among all peers of the launch that Megatron has given a shard to."""
        counted = [group.counted for group in self._groups]
        for group in self._groups:
            group.counted = shard * self._of_server + self._among_own, self._size
        try:
            yield
        finally:
            for group, was in zip(self._groups, counted, strict=True):
                group.counted = was


def find_distributed(optimizer: Any) -> list[Any]:
    """The distributed optimizers that Megatron has set up; none if it has set up others."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [each for each in chained if isinstance(each, DistributedOptimizer)]


def is_divided(parameter: torch.nn.Parameter) -> bool:
    """Whether it is one of an expert's, where ranks have different experts."""
    return not getattr(parameter, "allreduce", True)


def _parts(optimizer: Any) -> list[torch.Tensor]:
    return [part for group in optimizer.optimizer.param_groups for part in group["params"]]


def _copied(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**group, "params": list(group["params"])} for group in groups]
