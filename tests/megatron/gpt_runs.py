"""The same GPT trained by a plan and by Megatron's stock 1F1B, for comparison."""

import functools

import msgspec
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.utils import get_attr_wrapped_model

from recycle.job import Server
from recycle.megatron.cpu import run_on_cpu
from recycle.megatron.gpt import forward_step
from recycle.megatron.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.stage import MegatronStage
from recycle.megatron.ties import Tie
from recycle.megatron.world import Place, join_server
from recycle.runtime.launcher import launch
from recycle.runtime.network import Network
from recycle.runtime.recording import Recorder
from recycle.runtime.stage import MicroBatch
from recycle.runtime.text import ByteText, standard_library
from recycle.runtime.tokens import TokenTotal
from recycle.runtime.update import TorchUpdate
from recycle.runtime.view import View
from recycle.runtime.worker import Worker

OPTIONS = ModelOptions(layers=4, hidden=32, heads=4, sequence=16, micro_batch_size=2)


class Result(msgspec.Struct):
    """Losses by step, home and number; the final parameters, exactly."""

    losses: dict[str, float]
    parameters: list[float]


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


@functools.cache
def content():
    return standard_library()[:200_000]


class LettersOnly(ByteText):
    """A text of which only letters count, so that every micro-batch has another number of tokens."""

    def samples(self, micro_batch, part=0):
        tokens, labels = super().samples(micro_batch, part)
        return tokens, labels.masked_fill(labels < ord("A"), -1)


def text(options):
    kind = LettersOnly if options.per_token_loss else ByteText
    return kind(content(), "the library", options.sequence, options.micro_batch_size, options.seed)


def name(micro_batch):
    return f"{micro_batch.step} {micro_batch.home} {micro_batch.number}"


def flat(parameters):
    return torch.cat([each.detach().float().flatten() for each in parameters]).tolist()


def gather(servers, body):
    results = {}

    def receive(rank, payload):
        results[servers[rank]] = msgspec.msgpack.decode(payload, type=Result)

    launch(len(servers), body, receive)
    return results


def train_by_plan(plan, steps, options=OPTIONS):
    """Every server's result."""
    view = View.of(plan)
    job = plan.job

    def body(member):
        run_on_cpu()
        server = view.servers[member.rank]
        store = member.store()
        groups = join_server(store, view.epoch, server, job.depth)
        config = transformer_config(options, job.depth)
        model = build_stage(options, config, server.stage, job.depth, groups)
        network = Network(store, view, server)
        shape = (options.sequence, options.micro_batch_size, options.hidden)
        place = Place(server.stage, job.depth)
        samples = text(options).samples
        stage = MegatronStage(model, config, place, shape, job.micro_batches, forward_step, samples, seed=options.seed)
        tie = None
        if options.tied and server.stage in (0, job.depth - 1):
            weight = get_attr_wrapped_model(model, "shared_embedding_or_output_weight")
            tie = Tie(weight(), network, job.depth)
            tie.copy_from_first()
        update = TorchUpdate(
            stage.parameters(),
            optimizer,
            network,
            job.pipelines,
            after_reduction=tie.reduce if tie else lambda: None,
            tokens=TokenTotal(network, job.depth, stage.take_tokens) if options.per_token_loss else None,
        )
        worker = Worker(plan, server, stage, update, network, Recorder(server))
        losses = {}
        for step in range(steps):
            losses |= {name(micro_batch): loss for micro_batch, loss in worker.run(step).losses.items()}
        network.barrier()
        member.report(msgspec.msgpack.encode(Result(losses, flat(model.parameters()))))

    return gather(view.servers, body)


def train_by_stock(job, steps, options=OPTIONS):
    """Every server's result, by Megatron's own schedule and gradient reduction."""
    # Megatron numbers ranks with the pipeline's stage outermost.
    servers = [Server(pipeline, stage) for stage in range(job.depth) for pipeline in range(job.pipelines)]

    def body(member):
        run_on_cpu()
        server = servers[member.rank]
        dist.init_process_group("gloo", store=member.store(), rank=member.rank, world_size=member.count)
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=job.depth)
        assert parallel_state.get_pipeline_model_parallel_rank() == server.stage
        assert parallel_state.get_data_parallel_rank() == server.pipeline
        model_parallel_cuda_manual_seed(0)
        config = transformer_config(options, job.depth)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        model = build_stage(options, config, server.stage, job.depth, groups)
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
        config.no_sync_func = model.no_sync
        config.finalize_model_grads_func = finalize_model_grads
        adam = optimizer(model.parameters())
        samples = text(options).samples
        losses = {}
        for step in range(steps):
            model.zero_grad_buffer()
            batches = [MicroBatch(step, server.pipeline, number) for number in range(job.micro_batches)]
            reported = get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter([samples(each) for each in batches]),
                model=model,
                num_microbatches=job.micro_batches,
                seq_length=options.sequence,
                micro_batch_size=options.micro_batch_size,
            )
            losses |= {name(batch): float(each["lm loss"]) for batch, each in zip(batches, reported, strict=False)}
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad
            adam.step()
            adam.zero_grad(set_to_none=True)
        dist.barrier()
        member.report(msgspec.msgpack.encode(Result(losses, flat(model.parameters()))))

    return gather(servers, body)


def all_losses(results):
    return {key: loss for result in results.values() for key, loss in result.losses.items()}
