"""The same training script, which says at its end how often the host waited for other ranks in each iteration.

A round is a sum over gloo, or a request to the store, that the training thread makes. It is named by the module that
asks for it, and has a bracket behind its name if it is made while another one is under way, so that it costs no wait of
its own.
"""

import os
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from recycle.control.store.host_store import HostConnection
from recycle.control.store.tcp_store import TorchStore
from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.runtime.net.gloo.groups import GlooGroup, GlooReduction
from recycle.runtime.net.network import ReductionKind

NETWORK = f"{os.sep}net{os.sep}"
UNHURRIED = "notices"
"""What is read an iteration later."""

present: Counter[str] = Counter()
rounds: list[Counter[str]] = []
under_way: set[int] = set()


def module_of(frame: FrameType | None) -> str:
    """Which module asks for a round: the innermost one that is not about networks."""
    while frame is not None and (NETWORK in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    assert frame is not None
    return Path(frame.f_code.co_filename).stem


def is_training() -> bool:
    return threading.current_thread() is threading.main_thread()


def requests(ask: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ask)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        if is_training():
            present["store"] += 1
        return ask(*arguments, **keywords)

    return counted


start, wait, train = GlooGroup.start, GlooReduction.wait, ProtectedExecution.train


@wraps(start)
def count_start(self: GlooGroup, kind: ReductionKind, tensor: torch.Tensor) -> GlooReduction:
    reduction = start(self, kind, tensor)
    if is_training():
        module = module_of(sys._getframe(1))
        present[f"{module} (beside)" if under_way else module] += 1
        if module != UNHURRIED:
            under_way.add(id(reduction))
    return reduction


@wraps(wait)
def count_wait(self: GlooReduction) -> None:
    under_way.discard(id(self))
    wait(self)


@wraps(train)
def count_iteration(self: ProtectedExecution, iteration: int) -> Sequence[Any]:
    rounds.append(present.copy())
    present.clear()
    return train(self, iteration)


for store, names in (
    (TorchStore, ("set", "get", "compare_set", "add", "append", "entries")),
    (HostConnection, ["ask"]),
):
    for name in names:
        setattr(store, name, requests(getattr(store, name)))
GlooGroup.start = count_start  # type: ignore[method-assign]
GlooReduction.wait = count_wait  # type: ignore[method-assign]
ProtectedExecution.train = count_iteration  # type: ignore[assignment, method-assign]
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
sys.stdout.write(f"rounds of rank {os.environ['RANK']}: {msgspec.json.encode(rounds).decode()}\n")
