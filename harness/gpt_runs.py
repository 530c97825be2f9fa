"""The same GPT trained by a plan and by Megatron's stock 1F1B, for comparison."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

import msgspec
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import get_attr_wrapped_model

from harness.examples import paper_job
from harness.local import LocalProcess
from harness.ranks import results_of
from recycle.control.membership.view import View
from recycle.job import Job, Server
from recycle.megatron.flag.command.server_ranks import ServerRanks
from recycle.megatron.flag.data.other_data import OtherData
from recycle.megatron.flag.data.script_data import ScriptData
from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.megatron.flag.run.schedule import PlanSchedule, ThisRank
from recycle.megatron.flag.steps.gradients import LiveGradients
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.gpt.text import ByteText, standard_library
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.stage import ForwardStep, MegatronStage
from recycle.megatron.shared.ties import Tie
from recycle.megatron.shared.world import Place, join_server
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.tokens import TokenTotal
from recycle.runtime.step.update import TorchUpdate

OPTIONS = ModelOptions(layers=4, hidden=32, heads=4, sequence=16, micro_batch_size=2)


class Result(msgspec.Struct):
    """Losses by step, home and number; the final parameters, exactly."""

    losses: dict[str, float]
    parameters: list[float]


def optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


class FullPrecision:
    """AdamW on copies in full precision of a DDP model's parameters, as mixed precision is trained."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model: list[Any] = list(model.parameters())
        self.main = [each.detach().float().clone() for each in self.model]
        self.adam = optimizer(self.main)

    def step(self) -> None:
        for main, parameter in zip(self.main, self.model, strict=True):
            main.grad = parameter.main_grad.float()
        self.adam.step()
        with torch.no_grad():
            for main, parameter in zip(self.main, self.model, strict=True):
                parameter.copy_(main)


@functools.cache
def content() -> bytes:
    return standard_library()[:200_000]


class LettersOnly(ByteText):
    """A text of which only letters count, so that every micro-batch has another number of tokens."""

    def samples(self, micro_batch: MicroBatch, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, labels = super().samples(micro_batch, part)
        return tokens, labels.masked_fill(labels < ord("A"), -1)


def text(options: ModelOptions) -> ByteText:
    kind = LettersOnly if options.per_token_loss else ByteText
    return kind(content(), "the library", options.sequence, options.micro_batch_size, options.seed)


def name(micro_batch: MicroBatch) -> str:
    return f"{micro_batch.step} {micro_batch.home} {micro_batch.number}"


def flat(parameters: Iterable[torch.Tensor]) -> list[float]:
    found: list[float] = torch.cat([each.detach().float().flatten() for each in parameters]).tolist()
    return found


def gather(
    servers: Sequence[Server], body: Callable[[LocalProcess], Result | None], tensor_parallel: int = 1
) -> dict[Server, Result]:
    found = results_of(len(servers) * tensor_parallel, body, Result | None)
    return {servers[rank // tensor_parallel]: result for rank, result in found.items() if result is not None}


def train_by_plan(plan: Plan, steps: int, options: ModelOptions = OPTIONS) -> dict[Server, Result]:
    """Every server's result."""
    view = View.of(plan)
    job = plan.job

    def body(member: LocalProcess) -> Result:
        run_on_cpu()
        server = view.servers[member.rank]
        store = member.store()
        groups = join_server(server, job.depth)
        config = transformer_config(options, job.depth)
        model = build_stage(options, config, server.stage, job.depth, groups)
        network = connect(store, view, server)
        shape = (options.sequence, options.micro_batch_size, options.hidden)
        place = Place(server.stage, job.depth)
        stage = MegatronStage(model, place, shape, job.micro_batches, forward_step, text(options), options.seed)
        tie = None
        if options.tied and server.stage in (0, job.depth - 1):
            weight = get_attr_wrapped_model(model, "shared_embedding_or_output_weight")
            tie = Tie([weight()], network, view.peers(0), view.peers(job.depth - 1))
            tie.copy_from_first()
        update = TorchUpdate(MainParameters(stage.parameters()), optimizer, job.pipelines, [server.stage], job.depth)
        group = network.peers if server.stage == job.depth - 1 else None
        total = TokenTotal(network, view.peers(job.depth - 1), group, stage.take_tokens)
        update.connect(
            network,
            after_reduction=tie.reduce if tie else lambda: None,
            tokens=total if options.per_token_loss else None,
        )
        worker = Worker(plan, [stage], update, network, Recorder(server))
        losses: dict[str, float] = {}
        for step in range(steps):
            places = [
                MicroBatch(step, *divmod(place, job.micro_batches))
                for place in range(job.pipelines * job.micro_batches)
            ]
            found = worker.run(step).losses
            losses |= {name(place): loss for place, loss in zip(places, found, strict=False)}
        network.barrier()
        return Result(losses, flat(model.parameters()))

    return gather(view.servers, body)


def token_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """A loss of tokens: the sum, and how many there are."""
    total = losses.float().sum()
    return total, torch.tensor(losses.numel(), dtype=torch.int), {"lm loss": total.detach().clone() / losses.numel()}


def token_forward_step(data_iterator: Iterator[Any], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
    return forward_step(data_iterator, model)[0], token_loss


class AnyPart(NamedTuple):
    """The text of any pipeline; in the place of OtherData."""

    samples: Callable[[MicroBatch], Any]

    def begin(self, step: int, micro_batches: int, consumed: int) -> None:
        """It has as many as are asked for."""

    def consumed(self, step: int) -> int:
        """Nobody counts them."""
        return 0

    def __call__(self, micro_batch: MicroBatch) -> Any:
        return self.samples(micro_batch)


class LiveExecution:
    """In the place of ProtectedExecution: executes a plan whose dead servers take part in nothing; no other dies."""

    def __init__(self, plan: Plan, here: ThisRank, store: dist.Store) -> None:
        self.plan = plan
        self.server = here.server
        self.network = connect(store, View.of(plan), here.server, rank=here.rank)

    def begin(self, stages: Sequence[MegatronStage]) -> None:
        (self.stage,) = stages
        update = LiveGradients(stages, self.network, self.plan.job)
        recorder, early = Recorder(self.server), update.early_sums
        self.worker = Worker(self.plan, stages, update, self.network, recorder, early_sums=early)

    def train(self, step: int) -> list[Any]:
        self.stage.drop()
        self.worker.bring(self.stage.micro_batches)
        self.worker.run(step)
        return list(self.stage.take_results().values())


def train_by_stock(
    job: Job,
    steps: int,
    options: ModelOptions = OPTIONS,
    plan: Plan | None = None,
    data: bool = True,
    ddp: Mapping[str, Any] | None = None,
    step: ForwardStep = forward_step,
    tensor_parallel: int = 1,
    **config: Any,
) -> dict[Server, Result]:
    """Every live server's result by Megatron's training code; on its own schedule, or on a plan in its place.

    Servers that are dead in the plan take part in making Megatron's groups, and then in nothing.
    """
    # Megatron numbers ranks with the pipeline's stage outermost.
    servers = [Server(pipeline, stage) for stage in range(job.depth) for pipeline in range(job.pipelines)]
    failed = tuple(plan.dead) if plan else ()

    def body(member: LocalProcess) -> Result | None:
        run_on_cpu()
        server = servers[member.rank // tensor_parallel]
        store = member.store()
        world = dist.PrefixStore("world", store)
        dist.init_process_group("gloo", store=world, rank=member.rank, world_size=member.count)
        parallel_state.initialize_model_parallel(tensor_parallel, job.depth)
        here = ThisRank.find(ServerRanks(tensor_parallel, 1, tensor_parallel))
        assert here.server == server
        model_parallel_cuda_manual_seed(0)
        transformer = transformer_config(options, job.depth, tensor_model_parallel_size=tensor_parallel, **config)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        model = build_stage(options, transformer, server.stage, job.depth, groups)
        if transformer.bf16:
            model = Float16Module(transformer, model)
        model = DistributedDataParallel(transformer, DistributedDataParallelConfig(**(ddp or {})), model)
        transformer.no_sync_func = model.no_sync
        transformer.finalize_model_grads_func = finalize_model_grads
        if server in failed:
            store.wait(["finished"])
            return None
        samples = text(options).samples
        forward_backward = get_forward_backward_func()
        script_data = ScriptData(server.pipeline, lambda: 0)
        if plan is not None:
            execution = cast("ProtectedExecution", LiveExecution(plan, here, store))
            forward_backward = PlanSchedule(plan, server, script_data, count().__next__, 0, execution)
        main = FullPrecision(model)
        losses: dict[str, float] = {}
        for turn in range(steps):
            model.zero_grad_buffer()
            batches = [MicroBatch(turn, server.pipeline, number) for number in range(job.micro_batches)]
            iterator = iter([samples(each) for each in batches])
            if data:
                # Nobody asks it for more.
                script_data.add(iterator, cast("OtherData", AnyPart(samples)), 0)
            reported = forward_backward(
                forward_step_func=step,
                data_iterator=iterator,
                model=[model],
                num_microbatches=job.micro_batches,
                seq_length=options.sequence,
                micro_batch_size=options.micro_batch_size,
            )
            for place, each in enumerate(reported):
                losses[f"{turn} {server} {place}"] = float(each["lm loss"])
            main.step()
        if store.add("done", 1) == tensor_parallel * (len(servers) - len(failed)):
            store.set("finished", "yes")
        store.wait(["finished"])
        # One of a server's ranks speaks for it.
        is_first = parallel_state.get_tensor_model_parallel_rank() == 0
        return Result(losses, flat(model.parameters())) if is_first else None

    return gather(servers, body, tensor_parallel)


def mean_losses(results: Mapping[Server, Result], steps: int) -> list[float]:
    """The mean loss of every step."""
    found: list[list[float]] = [[] for _ in range(steps)]
    for key, loss in all_losses(results).items():
        found[int(key.split()[0])].append(loss)
    return [sum(each) / len(each) for each in found]


def all_losses(results: Mapping[Server, Result]) -> dict[str, float]:
    return {key: loss for result in results.values() for key, loss in result.losses.items()}


JOB = paper_job(pipelines=2, stages=2, micro_batches=4, limit=4, released=0)
PER_TOKEN: dict[str, Any] = {"step": token_forward_step, "calculate_per_token_loss": True}

VARIANTS: dict[str, dict[str, Any]] = {
    "dropout": {"options": msgspec.structs.replace(OPTIONS, tied=True, dropout=0.1)},
    "bf16 with fp32 main parameters": {
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "ddp": {"grad_reduce_in_fp32": True},
    },
    "tensor parallel": {"options": msgspec.structs.replace(OPTIONS, tied=True), "tensor_parallel": 2},
}
