"""An optimizer that counts as those do that need CUDA."""

import torch


class GroupCountingAdam(torch.optim.Optimizer):
    """AdamW whose groups count its steps, as Transformer Engine's and Apex's do; torch's counts with each parameter.

    Args:
        params: parameters, or groups of them.
        lr: the learning rate.
        betas: how slowly each moment changes.
        eps: what keeps it from dividing by nothing.
        weight_decay: likewise.
        others: what the others take as well.
    """

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **others):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Step all that have a gradient."""
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
            for each in group["params"]:
                if each.grad is not None:
                    self._step(each, group)

    def _step(self, parameter, group):
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["exp_avg"].mul_(first).add_((1 - first) * parameter.grad)
        state["exp_avg_sq"].mul_(second).add_((1 - second) * parameter.grad.square())
        mean, square = (
            state["exp_avg"] / (1 - first ** group["step"]),
            state["exp_avg_sq"] / (1 - second ** group["step"]),
        )
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))
