"""Tiny models and data, and the same training without a pipeline."""

import torch

from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import MicroBatch
from scripts.plain_torch import boundaries, cut

WIDTH = 8
ROWS = 4


class Residual(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.grow = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.shrink = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, value):
        return value + self.dropout(self.shrink(torch.nn.functional.gelu(self.grow(self.norm(value)))))


def layers(depth, dropout=0.0, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[Residual(dropout) for _ in range(depth)])


def inputs(micro_batch):
    # Threads of one process may draw at the same time.
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed_of(7, micro_batch, 0)))


def targets(micro_batch):
    return inputs(micro_batch).roll(1, dims=1)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def stage_boundaries(model, depth):
    return boundaries(cut(model, depth), inputs(MicroBatch(0, 0, 0)))


def train_whole(job, steps, dropout=0.0, clip=None):
    """Losses by micro-batch and the final parameters of each stage, without any pipeline."""
    model = layers(len(job.stages), dropout)
    stages = cut(model, len(job.stages))
    adam = optimizer(model.parameters())
    losses = {}
    for step in range(steps):
        adam.zero_grad()
        for home in range(job.pipelines):
            for number in range(job.micro_batches):
                micro_batch = MicroBatch(step, home, number)
                value = inputs(micro_batch)
                for place, stage in enumerate(stages):
                    with seeded(seed_of(0, micro_batch, place)):
                        value = stage(value)
                loss = torch.nn.functional.mse_loss(value, targets(micro_batch))
                losses[micro_batch] = loss.item()
                (loss / (job.pipelines * job.micro_batches)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        adam.step()
    return losses, [torch.cat([each.detach().flatten() for each in stage.parameters()]) for stage in stages]
