"""Executes a plan on servers that all live as long as the run, so that Megatron's own groups work.

The optimizer is Megatron's, which steps when the schedule returns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection

from recycle.control.membership.view import View
from recycle.megatron.flag.run.schedule import ThisRank
from recycle.megatron.flag.steps.gradients import FinalizedGradients
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.device import DeviceClock
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network, NetworkOptions, TransportKind


class WholeGradients(FinalizedGradients):
    """Megatron finalizes its gradients itself, which takes every server; those without work have added nothing.

    Args:
        stages: of the server, rising.

    Attributes:
        force_all_reduce: what the training code asks for in this iteration.
    """

    def __init__(self, stages: Sequence[MegatronStage]) -> None:
        self.force_all_reduce = False
        self._stages = stages

    def start_reduction(self, chunk: int) -> None:
        """Nothing: gradients of all chunks are finalized together."""

    def reduce(self, chunk: int, *, last: bool) -> None:
        """See StageUpdate: Megatron does it for all chunks of a server together."""
        if last:
            self.finalize()

    def finalize(self) -> None:
        """Give every server of the stage the gradient of the whole batch."""
        config = self._stages[-1].config
        if config.finalize_model_grads_func is None:
            return
        config.finalize_model_grads_func(
            [stage.model for stage in self._stages],
            self._stages[-1].tokens if config.calculate_per_token_loss else None,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
            force_all_reduce=self.force_all_reduce,
        )


class UnprotectedExecution:
    """Executes one plan; an Execution.

    Servers that are dead in the plan live all the same, and take part in whatever Megatron does around its schedule:
    they only leave their work to their peers.

    Args:
        plan: a lowered plan.
        here: this rank.
        store: where the ranks find each other.
        transport: what carries the tensors of its stages.

    Attributes:
        recorder: what was executed.
    """

    def __init__(self, plan: Plan, here: ThisRank, store: dist.Store, transport: TransportKind = "gloo") -> None:
        self.recorder = Recorder(here.server, clock=DeviceClock())
        self._plan = plan
        server = here.server
        self._network: Network | None = None
        if server in plan.programs:
            self._network = connect(store, View.of(plan), server, NetworkOptions(transport=transport), here.rank)
        self._pipelines = here.layout.pipelines
        self._exchanges_reports = bool(plan.dead) and server.stage == plan.job.depth - 1

    def begin(self, stages: Sequence[MegatronStage]) -> None:
        """See Execution."""
        self._stages = stages
        self._update = WholeGradients(stages)
        self._worker: Worker | None = None
        if self._network is not None:
            self._worker = Worker(self._plan, stages, self._update, self._network, self.recorder)

    def train(self, step: int, force_all_reduce: bool) -> list[Any]:
        """See Execution; the reports are those of the micro-batches of this server's pipeline."""
        for stage in self._stages:
            stage.drop()
        self._update.force_all_reduce = force_all_reduce
        if self._worker is None:
            # Its gradients are zero, and every server of the stage has to be there.
            self._update.finalize()
        else:
            self._worker.bring(self._stages[-1].micro_batches)
            self._worker.run(step)
        results = self._stages[-1].take_results()
        if not self._exchanges_reports:
            return list(results.values())
        return exchange_reports(results, parallel_state.get_data_parallel_group(), self._pipelines)


def exchange_reports(
    results: Mapping[MicroBatch, Any], group: dist.ProcessGroup, pipelines: int = 1
) -> list[dict[str, torch.Tensor]]:
    """Give what was reported here to the homes of the micro-batches, and take what is for this pipeline.

    Args:
        results: what the loss function gave, by micro-batch.
        group: all servers of the last stage, by pipeline; each of them comes here.
        pipelines: that go through each server; its ranks in the group are neighbours.

    Returns:
        The reports of the micro-batches of this server's pipeline, in their order.
    """
    mine = group.rank()
    # A server has computed for the same one of the pipelines through another.
    computed = {
        (each.home * pipelines + mine % pipelines, each.number): {
            name: (value.device.type, value.detach().cpu().clone()) for name, value in values.items()
        }
        for each, values in results.items()
    }
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, computed, group=group)
    reports = {number: values for each in found for (home, number), values in each.items() if home == mine}
    return [{name: value.to(device) for name, (device, value) in reports[number].items()} for number in sorted(reports)]
