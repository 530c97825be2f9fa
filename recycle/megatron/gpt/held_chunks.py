"""Which chunks a server holds, as they move between servers; it is Movable."""

from collections.abc import Callable, Mapping, Sequence

import torch

from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.stage_training import StageTraining
from recycle.runtime.step.checkpoint import give_state
from recycle.runtime.step.listener import Listener
from recycle.runtime.step.update import TorchUpdate

State = Mapping[str, torch.Tensor]


class HeldChunks:
    """The chunks of a server's training, in it and aside.

    What the server is to hold no longer is set aside until the first iteration without it is made: others may still
    need a copy, if one of them dies before that.

    Args:
        training: of the chunks.
        make_stage: makes one of them, with any parameters.
        make_update: makes what reduces and steps some of them.
    """

    def __init__(
        self,
        training: StageTraining,
        make_stage: Callable[[int], MegatronStage],
        make_update: Callable[[Sequence[MegatronStage], Sequence[int]], TorchUpdate],
    ) -> None:
        self._training = training
        self._make_stage = make_stage
        self._make_update = make_update
        self._aside: dict[int, State] = {}
        self._version = 0
        self._missing: frozenset[int] = frozenset()
        self._copies: dict[int, StageTraining] = {}
        self._arrived: set[int] = set()

    @property
    def held(self) -> tuple[int, ...]:
        """See Movable."""
        return tuple(sorted({*self._training.chunks, *self._spares} - self._missing))

    def part(self, chunk: int) -> State:
        """See Movable."""
        spares = self._spares
        return spares[chunk] if chunk in spares else self._training.part(chunk)

    @property
    def newest(self) -> int:
        """See Movable."""
        return self._training.newest

    def listen(self, listeners: Sequence[tuple[int, Listener]]) -> None:
        """See Movable."""
        self._training.listen(_ChunkFeed(self._training, listeners) if listeners else None)

    def start_copy(self, chunk: int) -> StageTraining:
        """See Movable."""
        stage = self._make_stage(chunk)
        copy = StageTraining([stage], [chunk], self._make_update([stage], [chunk]), self._training.recorder)
        self._copies[chunk] = copy
        self._arrived.discard(chunk)
        return copy

    def take_copy(self, chunk: int) -> None:
        """See Movable."""
        self._arrived.add(chunk)

    def hold(self, chunks: Sequence[int]) -> None:
        """See Movable."""
        training = self._training
        # Nobody follows any longer.
        self._copies = {chunk: self._copies[chunk] for chunk in self._arrived}
        if tuple(chunks) == training.chunks:
            return
        parts = {chunk: self.part(chunk) for chunk in self.held}
        known = {chunk: stage for chunk, stage in training.stages.items() if chunk in chunks}
        known |= {chunk: self._copies[chunk].stages[chunk] for chunk in self._arrived - set(known)}
        stages = {chunk: known.get(chunk) or self._make_stage(chunk) for chunk in chunks}
        version = training.newest
        update = self._make_update(list(stages.values()), list(stages))
        training.replace(stages, update)
        for chunk in set(chunks) & set(parts):
            give_state(parts[chunk], training.named(chunk), update.optimizer)
        update.adopt(version)
        self._aside = {chunk: part for chunk, part in parts.items() if chunk not in chunks}
        self._version = version
        self._missing = frozenset(chunks) - frozenset(parts)

    def complete(self) -> None:
        """Those that were missing have a version now."""
        self._missing = frozenset()

    def let_go(self) -> None:
        """An iteration was made: nobody needs what was set aside any more."""
        self._aside = {}
        if self._arrived:
            self._copies = {chunk: copy for chunk, copy in self._copies.items() if chunk not in self._arrived}
            self._arrived.clear()

    @property
    def _spares(self) -> dict[int, State]:
        """What was set aside and what was copied, as long as it is of the newest version."""
        newest = self._training.newest
        aside = self._aside if newest == self._version else {}
        copies = {each: self._copies[each] for each in self._arrived - set(self._training.chunks)}
        return aside | {each: copy.part(each) for each, copy in copies.items() if copy.newest == newest}


class _ChunkFeed:
    """Tells each of some listeners of the steps of one chunk; a Listener."""

    def __init__(self, training: StageTraining, listeners: Sequence[tuple[int, Listener]]) -> None:
        self._training = training
        self._listeners = listeners

    def stepping(self, parts: Sequence[torch.Tensor]) -> None:
        """See Listener."""
        *_, made = parts
        training = self._training
        for chunk, listener in self._listeners:
            listener.stepping((*training.update.parts_of(training.chunks.index(chunk)), made))

    def undone(self) -> None:
        """See Listener."""
        for _, listener in self._listeners:
            listener.undone()
