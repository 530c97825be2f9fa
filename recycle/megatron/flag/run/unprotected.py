"""Executes a plan on servers that all live as long as the run, so that Megatron's own groups work.

The optimizer is Megatron's, which steps when the schedule returns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state

from recycle.control.membership.view import View
from recycle.megatron.flag.run.schedule import ThisRank
from recycle.megatron.flag.steps.gradients import WholeGradients
from recycle.megatron.flag.steps.loss_reports import exchange_reports
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.device import DeviceClock
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import Network, NetworkOptions, TransportKind


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

    def __init__(
        self, plan: Plan, here: ThisRank, store: torch.distributed.Store, transport: TransportKind = "gloo"
    ) -> None:
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
