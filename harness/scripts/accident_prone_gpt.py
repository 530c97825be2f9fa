"""The same training script, on whose ranks accidents happen.

ACCIDENTS names them: ``3:norm:2,2:save:1`` kills rank 3 when it is about to take a norm for the second time, and rank 2
when the first checkpoint of format torch that it writes is half on disk. In those of format torch_dist, ``write`` kills
before a tensor is written, ``written`` when all of the rank's are, and ``tracker`` when the checkpoint is whole and
not named; ``named`` kills in those of any format when the tracker names it.
``adam`` kills before a step of the optimizer: with a distributed optimizer, there is one for each shard.
``voted`` kills when the first round of a vote is over, and ``unheard`` has a rank hear of the end of that view then.
``early`` kills when a sum of gradients has begun in a backward pass, and ``gathered`` when parameters have come in a
forward pass, each of which is told in a line.
With shards, ``share`` kills in a sum of gradients, ``count`` between the vote and the norm, ``step`` between the norm
and the step, and ``spread`` before this rank gives what it has stepped to its peers. ``unsent`` has
nothing given, and kills a moment after peers may wait for it: in a forward pass, or where they look at all parameters.
If TOGETHER names a folder, ranks die when all that have an accident have come to theirs.
"""

import io
import os
import runpy
import signal
import sys
import time
from functools import wraps
from pathlib import Path

import torch
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer import optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.training import checkpointing

from recycle.megatron.flag.steps import sharded_optimizer
from recycle.megatron.flag.steps.gradients import LiveGradients
from recycle.megatron.flag.steps.redone import Reruns
from recycle.megatron.flag.steps.sharded_optimizer import ParameterGathers
from recycle.megatron.shared.stage import MegatronStage
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.net.nccl.network import OrderedNetwork
from recycle.runtime.net.shares import SharedSum

left = {}
for accident in filter(None, os.environ.get("ACCIDENTS", "").split(",")):
    rank, point, count = accident.split(":")
    if rank == os.environ["RANK"]:
        left[point] = int(count)


def is_due(point):
    left[point] = left.get(point, 0) - 1
    return left[point] == 0


WORKER = os.getpid()
WAITED_FOR = 0.5
"""Seconds."""


def die():
    if folder := os.environ.get("TOGETHER"):
        Path(folder, os.environ["RANK"]).touch()
        while len(list(Path(folder).iterdir())) < len(os.environ["ACCIDENTS"].split(",")):
            time.sleep(0.01)
    # Some releases write in a process of their own.
    os.kill(WORKER, signal.SIGKILL)


def dying_before(function, name):
    @wraps(function)
    def act(*arguments, **keywords):
        if is_due(name()):
            die()
        return function(*arguments, **keywords)

    return act


def dying_save(save):
    @wraps(save)
    def act(content, file, *arguments, **keywords):
        if isinstance(file, str | os.PathLike) and is_due("save"):
            buffer = io.BytesIO()
            save(content, buffer)
            Path(file).write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
            die()
        return save(content, file, *arguments, **keywords)

    return act


def dying_at_the_end(end):
    @wraps(end)
    def act(is_async_finalization):
        if not is_async_finalization and is_due("named"):
            die()
        return end(is_async_finalization)

    return act


def with_accidents(share):
    @wraps(share)
    def act(*arguments, **keywords):
        noted = share(*arguments, **keywords)
        if is_due("voted"):
            die()
        if is_due("unheard"):
            raise ConnectionLost("somebody is gone before this rank has heard of the others")
        return noted

    return act


COMPUTING: list[object] = []


def noted(compute):
    @wraps(compute)
    def act(*arguments, **keywords):
        COMPUTING.append(compute)
        try:
            return compute(*arguments, **keywords)
        finally:
            COMPUTING.pop()

    return act


def dying_within(function, name, text):
    @wraps(function)
    def act(*arguments, **keywords):
        function(*arguments, **keywords)
        if COMPUTING:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            if is_due(name):
                die()

    return act


def sending(start):
    @wraps(start)
    def act(*arguments, **keywords):
        if not is_due("unsent"):
            start(*arguments, **keywords)

    return act


def dying_unsent(act):
    @wraps(act)
    def act_if_sent(*arguments, **keywords):
        if left.get("unsent") == 0:
            time.sleep(WAITED_FOR)
            die()
        return act(*arguments, **keywords)

    return act_if_sent


Reruns.share = with_accidents(Reruns.share)
optimizer.get_grad_norm_fp32 = dying_before(optimizer.get_grad_norm_fp32, lambda: "norm")
schedules.forward_step = dying_before(
    dying_unsent(schedules.forward_step), lambda: "forward" if torch.is_grad_enabled() else "evaluation"
)
MegatronStage.forward = noted(MegatronStage.forward)
MegatronStage.backward = noted(MegatronStage.backward)
MegatronStage.weight_gradient = noted(MegatronStage.weight_gradient)
LiveGradients._start_next = dying_within(LiveGradients._start_next, "early", "a sum begins in a backward pass")
SharedSum.wait = dying_before(SharedSum.wait, lambda: "share")
OrderedNetwork.start_shared_sum = dying_before(OrderedNetwork.start_shared_sum, lambda: "share")
shards = sharded_optimizer.ShardedOptimizer
shards._count = dying_before(shards._count, lambda: "count")
shards._step_and_spread = dying_before(shards._step_and_spread, lambda: "step")
ParameterGathers.start = sending(dying_before(ParameterGathers.start, lambda: "spread"))
shards.complete = dying_unsent(shards.complete)
ParameterGathers._precede = dying_within(ParameterGathers._precede, "gathered", "parameters come in a forward pass")
torch.save = dying_save(torch.save)
torch.optim.AdamW.step = dying_before(torch.optim.AdamW.step, lambda: "adam")
filesystem_async._write_item = dying_before(filesystem_async._write_item, lambda: "write")
writer = filesystem_async.FileSystemWriterAsync
writer.retrieve_write_results = dying_before(writer.retrieve_write_results, lambda: "written")
checkpointing.ft_integration.on_checkpointing_end = dying_at_the_end(checkpointing.ft_integration.on_checkpointing_end)
serialization.save_config = dying_before(serialization.save_config, lambda: "tracker")
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
