"""The stages of a server in training, which the project's own trainer and the flag share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from megatron.core.utils import get_model_config

from recycle.holding import live_holders
from recycle.job import Job, Server
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.ties import Tie, gradient_of, tie_of
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import Group, Network
from recycle.runtime.net.peers import chunk_peers, peers_of_last
from recycle.runtime.recover.restore import gather
from recycle.runtime.step.checkpoint import give_state, named_state, require_shapes, stage_state
from recycle.runtime.step.listener import Listener
from recycle.runtime.step.shard_steps import ShardSteps
from recycle.runtime.step.tokens import TokenTotal
from recycle.runtime.step.update import TorchUpdate

OF_HEADS = ("q_layernorm", "k_layernorm")
"""What the modules are called whose parameters have seen the heads of their rank."""


class StageTraining:
    """Stages whose steps are their own: their versions, and their work in the present view. It is Followable.

    Args:
        stages: what computes: one for each chunk that the server holds, rising.
        chunks: which those are.
        update: what reduces and steps.
        recorder: of its server; gets what is executed.

    Attributes:
        stages: what computes, by chunk.
        update: see above.
        recorder: see above.
    """

    def __init__(
        self, stages: Sequence[MegatronStage], chunks: Sequence[int], update: TorchUpdate, recorder: Recorder
    ) -> None:
        self.recorder = recorder
        self._worker: Worker | None = None
        self._tie: Tie | None = None
        self._plan: Plan | None = None
        self._per_token = stages[0].config.calculate_per_token_loss
        self.replace(dict(zip(chunks, stages, strict=True)), update)

    def replace(self, stages: Mapping[int, MegatronStage], update: TorchUpdate) -> None:
        """Train other stages from now on; it has to be connected before the next iteration.

        Args:
            stages: what computes, by chunk, rising.
            update: what reduces and steps them.
        """
        self.stages, self.update = stages, update
        # Named by their chunks, so that servers that share some of them call those by the same names.
        self._whole = {chunk: torch.nn.ModuleDict({str(chunk): stage.model}) for chunk, stage in stages.items()}

    @property
    def chunks(self) -> tuple[int, ...]:
        """That the server holds, rising."""
        return tuple(self.stages)

    # Its versions.

    @property
    def newest(self) -> int:
        """See Versioned."""
        return self.update.versions.newest

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self.update.versions.oldest

    @property
    def undone(self) -> int:
        """How many steps were taken back so far."""
        return self.update.versions.undone

    @property
    def shards(self) -> ShardSteps | None:
        """Of the optimizer; None where the server holds all of it."""
        return self.update.shards

    def drop(self) -> None:
        """See Versioned."""
        if self._worker is not None:
            self._worker.close()
        for stage in self._stages:
            stage.drop()
        self.update.drop()

    def undo(self) -> None:
        """See Versioned."""
        self.update.undo()

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        return self.update.enter(network, step)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned."""
        return stage_state(self._named(), self.update.optimizer)

    def named(self, chunk: int) -> Mapping[str, torch.Tensor]:
        """What a version of a chunk consists of, but for the optimizer's state."""
        return self.update.main.named(self._whole[chunk])

    def part(self, chunk: int) -> Mapping[str, torch.Tensor]:
        """The newest version of a chunk, by name."""
        return stage_state(self.named(chunk), self.update.optimizer)

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned; where some chunks are here already, the state may be that of the others alone."""
        named = {name: tensor for name, tensor in self._named().items() if f"parameter/{name}" in state}
        give_state(state, named, self.update.optimizer)
        self.update.adopt(step)

    def listen(self, listener: Listener | None) -> None:
        """See Followable."""
        self.update.feed.listener = listener

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """See Followable."""
        self.update.follow(parts)

    def stage_states(self, network: Network, writer: Server) -> list[dict[str, torch.Tensor]]:
        """The newest version of each stage, by the names that it has for itself; all peers of the server come here.

        Args:
            network: of the view.
            writer: the peer that needs it. Where the optimizer is in shards, others get only what all peers hold.

        Raises:
            ViewBroken: somebody is gone.
        """
        shards = self.shards
        states: Mapping[torch.Tensor, Mapping[str, torch.Tensor]] = self.update.optimizer.state
        if shards is not None:
            others = gather(shards, network, writer)
            states = shards.whole_state(others) if network.server == writer else states
        return [named_state(self.update.main.named(stage.model), states) for stage in self._stages]

    def take(self, step: int, folder: Path, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Take the version in a checkpoint.

        Args:
            step: which version it is.
            folder: of the checkpoint.
            states: of each stage, as ``stage_states`` gives them; what else they hold is left out.

        Raises:
            RunError: one is of a stage of another shape.
        """
        for stage, state in zip(self._stages, states, strict=True):
            named = self.update.main.named(stage.model)
            mine = {name: tensor for name, tensor in state.items() if name.rpartition("/")[2] in named}
            require_shapes(folder, named, mine)
            give_state(mine, named, self.update.optimizer)
        self.update.adopt(step, whole=True)

    # Its work.

    def connect(
        self,
        plan: Plan,
        network: Network,
        hooks: Sequence[Hooks] = (),
        notices: NoticeExchange | None = None,
        after_reduction: Callable[[], None] | None = None,
    ) -> None:
        """Work by a plan over a network from now on, with gradients of zero.

        Args:
            plan: a lowered plan in which the server is alive.
            network: of the plan's view.
            hooks: what is told of every instruction.
            notices: what servers tell each other in every reduction, if they do.
            after_reduction: called in every iteration when the gradients are whole, before they are used.

        Raises:
            ViewBroken: somebody is gone.
        """
        self._plan = plan
        live = live_holders(plan.job, frozenset(network.view.servers))
        models = [stage.model for stage in self._stages]
        drop = None if self.shards is None else self.update.sums.drop_shares_of_others
        self._tie = tie = tie_of(models, network, live[0], live[-1], drop)
        peers = chunk_peers(plan.job, network)
        last = peers_of_last(plan.job, peers)

        acts = (partial_gradients(models, network), None if tie is None else tie.reduce, after_reduction)
        together = [each for each in acts if each is not None]

        def finish() -> None:
            for act in together:
                act()

        tokens = TokenTotal(network, live[-1], last and last.group, self._take_tokens) if self._per_token else None
        self.update.connect(network, peers, finish if together else None, tokens)
        self._worker = Worker(plan, self._stages, self.update, network, self.recorder, hooks, notices)

    def tie_embeddings(self) -> None:
        """Where the last stage's head is the first stage's embedding, give it to both; before the first step."""
        if self._tie is not None:
            self._tie.copy_from_first()
            self.update.main.copy_here()

    @property
    def worker(self) -> Worker:
        """What makes iterations in the present view."""
        assert self._worker is not None, "it is in no view"
        return self._worker

    @property
    def job(self) -> Job:
        """What is trained, with what each server holds in the present view."""
        assert self._plan is not None, "it is in no view"
        return self._plan.job

    @property
    def _stages(self) -> list[MegatronStage]:
        return list(self.stages.values())

    def _take_tokens(self) -> int:
        return self._stages[-1].take_tokens()

    def _named(self) -> Mapping[str, torch.Tensor]:
        return {name: tensor for chunk in self._whole for name, tensor in self.named(chunk).items()}


def partial_gradients(models: Iterable[torch.nn.Module], network: Network) -> Callable[[], None] | None:
    """Sums those of a server over its ranks; None where it has one rank, or no such parameter.

    Args:
        models: the chunks that the server holds.
        network: of the server.
    """
    parameters = [each for model in models for each in seen_in_parts(model)] if network.rank.size > 1 else []
    return partial(sum_over, network.ranks, parameters) if parameters else None


def sum_over(ranks: Group, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give every rank of a server the whole gradients of some parameters.

    Raises:
        ViewBroken: somebody is gone.
    """
    gradients = [gradient_of(each) for each in parameters]
    together = torch.cat([each.reshape(-1) for each in gradients])
    ranks.sum(together)
    totals = together.split_with_sizes([each.numel() for each in gradients])
    for each, total in zip(gradients, totals, strict=True):
        each.copy_(total.view_as(each))


def seen_in_parts(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The parameters of a chunk that each tensor-parallel rank has a part of the gradient of."""
    config = get_model_config(model)
    for name, each in model.named_parameters():
        of_sequence = config.sequence_parallel and getattr(each, "sequence_parallel", False)
        of_heads = config.qk_layernorm and any(norm in name for norm in OF_HEADS)
        if each.requires_grad and (of_sequence or of_heads):
            yield each
