"""Megatron's own training code without CUDA: what it asks of a device before, around and after its schedules.

Only for machines that have no CUDA; ``recycle.megatron.shared.cpu`` does the same for what is below it.
"""

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch

from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.missing import stand_in_for_triton
from recycle.megatron.shared.patching import replace

COLLECTORS = ("get_write_results_queue", "_get_write_results_queue")
"""What makes the process that collects what all writers of a checkpoint have written."""

WRITERS = ("_get_process", "schedule_async_call")
"""What makes the process that writes checkpoints while training goes on."""


class NoStream:
    """A stream where there are none, and a moment of it, which is over: everything happens at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait(self, *_: Any, **__: Any) -> None:
        """Nothing to wait for."""

    wait_stream = wait_event = record = synchronize = wait

    def record_event(self, event: Any = None) -> "NoStream":
        """A moment that is over."""
        return event or self

    def __enter__(self) -> "NoStream":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def train_on_cpu() -> tuple[str, ...]:
    """Make ``megatron.training`` run on this machine's CPU; say what was done for it. Nothing where there is CUDA."""
    if torch.cuda.is_available():
        return ()
    applied = run_on_cpu()
    if importlib.util.find_spec("megatron.training") is None:
        return applied
    _have_one_device()

    from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
    from megatron.core.pipeline_parallel import p2p_communication
    from megatron.training import initialize, training

    replace(training, "initialize_megatron", _allow_no_cuda(training.initialize_megatron))
    # The index builder of datasets comes compiled with the package, and there are no kernels to warm up.
    replace(initialize, "_compile_dependencies", torch.distributed.barrier)
    replace(training, "set_jit_fusion_options", lambda **_: None)
    _route_on_cpu()
    replace(p2p_communication, "_p2p_ops", _keep_what_is_sent(p2p_communication._p2p_ops))  # noqa: SLF001
    # Releases differ in what it is called.
    writer = async_utils.PersistentAsyncCaller
    for owner, names in ((filesystem_async, COLLECTORS), (writer, WRITERS)):
        for name in names:
            if hasattr(owner, name):
                replace(owner, name, _without_script(getattr(owner, name)))
    replace(writer, "async_loop", staticmethod(write_on_cpu))
    from recycle.megatron.flag.device.torch_optimizers import load_with_torch_adam

    load_with_torch_adam()
    from recycle.megatron.shared.norms import take_parts_of_sequences

    take_parts_of_sequences()
    return (
        *applied,
        "torch.cuda has one device, whose streams, memory statistics and synchronisation do nothing",
        "megatron.training is initialised without CUDA, compiles no kernels and warms none up",
        "experts are given their tokens without CUDA, and torch's norms take a part of a sequence",
        "checkpoints of a distributed optimizer load where torch's own Adam steps",
        "what is sent to another stage keeps its memory until it has gone",
        "processes that write checkpoints have that device, and do not import the script",
    )


def write_on_cpu(*arguments: Any) -> None:
    """The work of the process that writes checkpoints while training goes on, which nothing else stands in for."""
    stand_in_for_triton()
    _have_one_device()
    from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

    PersistentAsyncCaller.async_loop(*arguments)


def _have_one_device() -> None:
    """Megatron sets up its groups only if there is a device, and gives each process its own."""
    replace(torch.cuda, "device_count", lambda: 1)
    replace(torch.cuda, "set_device", lambda device: None)
    replace(torch.cuda, "get_device_capability", lambda device=None: (0, 0))
    replace(torch.cuda, "get_device_properties", lambda device=None: SimpleNamespace(major=0, minor=0))
    for name in ("current_stream", "default_stream"):
        replace(torch.cuda, name, NoStream)
    replace(torch.cuda, "stream", lambda stream: stream)
    # What is imported later has them in its annotations, so that they have to be classes.
    replace(torch.cuda, "Stream", NoStream)
    replace(torch.cuda, "Event", NoStream)
    replace(torch.cuda, "synchronize", lambda device=None: None)
    replace(torch.cuda, "memory_stats", lambda device=None: defaultdict(int))


def _keep_what_is_sent(start: Callable[..., Any]) -> Callable[..., Any]:
    """Something that starts to send between stages, and keeps the memory of what it sends.

    With virtual stages, Megatron frees an output before it has waited until it is sent. Gloo would then send what was
    written to that memory meanwhile.
    """

    @wraps(start)
    def p2p_ops(*, tensor_send_prev: Any, tensor_send_next: Any, **others: Any) -> Any:
        sent = [None if each is None else each.detach() for each in (tensor_send_prev, tensor_send_next)]
        return start(tensor_send_prev=sent[0], tensor_send_next=sent[1], **others)

    return p2p_ops


def _route_on_cpu() -> None:
    """Have experts be told how many tokens they get as they are told on a device, and gate without its kernels."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    for module in (moe_utils, token_dispatcher):
        replace(module, "maybe_move_tensor_to_cpu", move)
    if not hasattr(moe_utils, "te_general_gemm"):
        # Some releases look for it where there is no Transformer Engine.
        moe_utils.te_general_gemm = None


def _without_script(spawn: Callable[..., Any]) -> Callable[..., Any]:
    """Something that spawns a process, in which the main program is not imported again.

    All that is done here for a process without CUDA is not done there, and some releases cannot be imported without.
    """

    @wraps(spawn)
    def spawn_alone(*arguments: Any, **keywords: Any) -> Any:
        main = vars(sys.modules["__main__"])
        script = main.pop("__file__", None)
        try:
            return spawn(*arguments, **keywords)
        finally:
            if script is not None:
                main["__file__"] = script

    return spawn_alone


def _allow_no_cuda(initialize: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(initialize)
    def initialize_megatron(*arguments: Any, **keywords: Any) -> Any:
        return initialize(*arguments, **keywords, allow_no_cuda=True)

    return initialize_megatron
