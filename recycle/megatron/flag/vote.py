"""Training whose optimizer Megatron steps, in the same way as without recycle.

The end of a schedule is a promise in two steps. When all servers have made their gradients whole, all say so once, and
once more. Who has heard everybody once knows that all gradients are whole, and who has heard everybody twice knows that
all others know it. Only then does the training code step its optimizer: so no step ever has to be taken back, and no
version but the present one is kept.
"""

from collections.abc import Mapping

import torch
from megatron.core.utils import get_model_config

from recycle.megatron.flag.finalize import LiveGradients
from recycle.megatron.flag.schedule import SurvivingSchedule
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.stage import StageUpdate
from recycle.runtime.net.network import Network


class PromisingSchedule(SurvivingSchedule):
    """A surviving schedule after which Megatron steps."""

    @property
    def newest(self) -> int:
        """How many schedules are done here; the optimizer has stepped for all but perhaps the last of them."""
        return self._newest

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self._oldest

    def undo(self) -> None:
        """The last schedule has to be done again."""
        self._newest = self._oldest

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        return step

    def state(self) -> Mapping[str, torch.Tensor]:
        """Nothing: who lacks the version of a verdict has its gradients all the same."""
        return {}

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """All gradients are whole, and this server has heard it now."""
        self._newest = step

    def settle(self) -> None:
        """Nothing: Megatron steps all stages together."""

    def _start(self, version: int) -> None:
        self._newest = self._oldest = version

    def _train(self, step: int) -> None:
        goal = self._newest + 1
        while self._oldest < goal:
            try:
                if self._newest < goal:
                    self._attempt(step)
                    self._live.barrier()
                    self._newest = goal
                self._live.barrier()
                self._oldest = goal
            except ViewBroken as error:
                self._recover(error)
                # If it is the verdict's version, all have it.
                self._oldest = self._newest
                if self._newest < goal:
                    self._chunk.zero_grad_buffer()

    def _attempt(self, step: int) -> None:
        worker, stage = self._worker, self._stage
        assert worker is not None
        assert stage is not None
        stage.restart()
        self.recorder.clear()
        worker.run(step)
        self._share_losses(self._live)

    def _make_update(self, network: Network) -> StageUpdate:
        assert self._stage is not None
        stage, config = self._stage, get_model_config(self._chunk)
        return LiveGradients(self._chunk, config, lambda: stage.tokens, network, self._job.depth)
