"""The injector: what faults do inside a worker, with the kernel's own means where there are any."""

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from recycle.faults.menu import Fault, Kind
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.net.gloo.sockets import cut_connections

EXIT_STATUS = 3


class InjectedFault(RuntimeError):
    """The exception of a fault of that kind."""


class Injector:
    """Makes a worker's faults happen, each of them once in the life of the process.

    A worker without faults has none of these.

    Args:
        faults: those of this server and incarnation.
        fired: is told of each fault, with nanoseconds of the monotonic clock, before it takes effect. It must not
            leave anything to be done later, because there may be no later.
        gradients: gives what is about to be reduced.
        keep_ports: connections from or to these ports are not cut: the store's port belongs here.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        fired: Callable[[Fault, int], None],
        gradients: Callable[[], Iterable[torch.Tensor]],
        keep_ports: Collection[int] = (),
    ) -> None:
        assert all(fault.is_of_worker for fault in faults), "a fault of the launcher's in a worker"
        self._waiting = list(faults)
        self._fired = fired
        self._gradients = gradients
        self._keep_ports = frozenset(keep_ports)
        self._factor = 1.0
        self._slow_until: float | None = None

    def before(self, step: int, instruction: Instruction) -> None:
        """Do what is due before an instruction.

        Raises:
            InjectedFault: that is what was due.
        """
        due = [fault for fault in self._waiting if _is_due(fault, step, instruction)]
        for fault in due:
            self._waiting.remove(fault)
            self._fired(fault, time.monotonic_ns())
            self._do(fault)

    def after(self, _: int, instruction: Instruction, seconds: Callable[[], float]) -> None:
        """Make an instruction last as long as a slow server's would; see Hooks."""
        if self._factor > 1 and instruction.op.is_compute:
            if self._slow_until is not None and time.monotonic() >= self._slow_until:
                self._factor = 1.0
            else:
                time.sleep((self._factor - 1) * seconds())

    def _do(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.EXCEPTION:
                raise InjectedFault(str(fault))
            case Kind.EXIT:
                os._exit(EXIT_STATUS)
            case Kind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.STOP:
                _stop(fault.duration)
            case Kind.SLOW:
                assert fault.factor is not None
                self._factor = fault.factor
                self._slow_until = None if fault.duration is None else time.monotonic() + fault.duration
            case Kind.DISCONNECT:
                cut_connections(self._keep_ports)
            case Kind.DISK_FULL:
                _fill_disk(fault.duration)
            case Kind.NAN:
                for buffer in self._gradients():
                    buffer.view(-1)[0] = float("nan")
            case _:
                raise AssertionError(f"a worker cannot do this: {fault}")


def _is_due(fault: Fault, step: int, instruction: Instruction) -> bool:
    if fault.kind is Kind.NAN:
        return fault.step == step and instruction.op is Op.REDUCE
    return fault.step == step and (fault.instruction is None or fault.instruction.matches(instruction))


def _stop(duration: float | None) -> None:
    me = os.getpid()
    if duration is None:
        os.kill(me, signal.SIGSTOP)
        return
    # A stopped process cannot wake itself up; and whoever wakes it must have stopped it, or it could come too early.
    subprocess.run(
        ["/bin/sh", "-c", f"kill -STOP {me}; sleep {duration:.3f}; kill -CONT {me}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def _fill_disk(duration: float | None) -> None:
    """No file of this process may grow: the kernel refuses every write to a regular file with EFBIG."""
    # Otherwise the process would be killed; Python ignores the signal from its start on.
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    if duration is not None:
        timer = threading.Timer(duration, resource.setrlimit, [resource.RLIMIT_FSIZE, (limit, hard)])
        timer.daemon = True
        timer.start()
