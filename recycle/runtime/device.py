"""What the runtime does with a GPU where there is one. Nothing here touches CUDA before a worker's own process does."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

import torch

from recycle.record.recorder import HostClock, HostMoment
from recycle.runtime.errors import RunError
from recycle.runtime.launcher_variables import number_in

DeviceKind = Literal["cpu", "cuda"]

_R = TypeVar("_R")

LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
"""Where launchers say which of its host's processes one is."""


def uses_gpu() -> bool:
    """Whether this process has begun to use a GPU; asking does not begin it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def own_device() -> torch.device:
    """What this process computes on: where tensors belong that came through host memory."""
    return torch.device("cuda", torch.cuda.current_device()) if uses_gpu() else torch.device("cpu")


def on_own_device(call: Callable[[], _R]) -> Callable[[], _R]:
    """The same call, for another thread: it works on the device of this one. Each thread begins with the first GPU."""
    device = own_device()

    def there() -> _R:
        torch.cuda.set_device(device)
        return call()

    return call if device.type == "cpu" else there


class DeviceMoment(NamedTuple):
    """A Moment of this process's GPU.

    Attributes:
        event: that is in the stream of the thread that computes.
    """

    event: torch.cuda.Event

    def wait(self) -> None:
        """See Moment."""
        self.event.synchronize()


class DeviceClock:
    """That of this process's GPU if it uses one, and of its processor otherwise; a MomentClock."""

    def __init__(self) -> None:
        self._host = HostClock()

    def mark(self) -> HostMoment | DeviceMoment:
        """See MomentClock."""
        return DeviceMoment(_record()) if uses_gpu() else self._host.mark()

    def times(self, marks: Sequence[HostMoment | DeviceMoment]) -> list[int]:
        """See MomentClock."""
        if not any(isinstance(each, DeviceMoment) for each in marks):
            return [each.time for each in marks if isinstance(each, HostMoment)]
        # One moment that both clocks know.
        known = _record()
        known.synchronize()
        now = self._host.mark().time
        return [
            each.time if isinstance(each, HostMoment) else now - round(1e6 * each.event.elapsed_time(known))
            for each in marks
        ]


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def settle() -> None:
    """Wait until all that this thread has started on its GPU is done; on a CPU, it is."""
    if uses_gpu():
        torch.cuda.current_stream().synchronize()


def room_in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Room for a tensor's content: pinned where it comes from a GPU, so that the GPU itself can copy."""
    return torch.empty_like(
        tensor, device="cpu", pin_memory=tensor.is_cuda, memory_format=torch.contiguous_format, requires_grad=False
    )


def device_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device of what lies in host memory. The host waits for nothing that the device is at."""
    return tensor.to(device) if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory of what a tensor holds once this thread's work on it is done."""
    return room_in_host_memory(tensor).copy_(tensor.detach())


def numbers(tensors: Iterable[torch.Tensor]) -> list[float]:
    """What tensors of one number hold, by one copy: the host waits once for the device."""
    found = list(tensors)
    return torch.stack(found).tolist() if found else []


def spare_cuda() -> None:
    """Have torch ask the driver's management library for GPUs, and not CUDA, in this process and those that it forks.

    Megatron and parts of torch ask when they are imported, and who has asked CUDA forks processes that cannot use it.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def count_gpus() -> int:
    """How many GPUs torch finds.

    A process that is forked for it asks: a process that has touched CUDA cannot fork others that use it.
    """
    return _ask_forked(lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0)


def _ask_forked(question: Callable[[], int]) -> int:
    """What a process answers that is forked for it; 0 if it does not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(int(question())).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return int(found or 0)


def require_device(kind: DeviceKind) -> None:
    """Refuse a device that this machine has not got, or that processes forked from here could not use.

    Raises:
        RunError: it is such a one.
    """
    if kind != "cuda":
        return
    if not count_gpus():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise RunError(
            f"device is cuda: torch {torch.__version__} finds no GPU here, and {built}; use --device cpu, or see "
            "what nvidia-smi says"
        )
    if _ask_forked(torch.cuda._is_in_bad_fork):  # noqa: SLF001
        raise RunError(
            "device is cuda: torch had to ask CUDA for GPUs, because the driver's libnvidia-ml.so.1 did not answer, "
            "and processes that are forked after that cannot use them; see what nvidia-smi says, or use --device cpu"
        )


def take_device(kind: DeviceKind, number: int) -> torch.device:
    """The device of this process from now on.

    Args:
        kind: of device.
        number: of this process among those of its host, as far as no launcher says another; where there are fewer
            GPUs, several processes share one.
    """
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", place_among_gpus(number))
    torch.cuda.set_device(device)
    return device


def place_among_gpus(number: int) -> int:
    """Which of the GPUs that this process sees is its; it may see that one only.

    Args:
        number: see ``take_device``.

    Raises:
        RunError: what the launcher says is no number.
    """
    name = next((each for each in LOCAL_RANKS if each in os.environ), None)
    return (number if name is None else number_in(os.environ, name)) % torch.cuda.device_count()


def state_of_generators() -> Sequence[torch.Tensor]:
    """Of the CPU's, and of this process's GPU if it uses one."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if uses_gpu() else states


def seed_generators(seed: int) -> None:
    """Draw from a seed, also on a GPU that this process uses or comes to use."""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:
        # The same, without a note of who has called it for when a GPU is used: that takes longer than small layers do.
        torch.default_generator.manual_seed(seed)


def restore_generators(states: Sequence[torch.Tensor]) -> None:
    """Draw on from where they were; see ``state_of_generators``."""
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
