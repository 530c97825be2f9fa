"""The flag on a stock training script: what is replaced of ``megatron.training`` when it is on, and nothing else."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from recycle.errors import UserError
from recycle.megatron.adapter import ScheduleAdapter, this_server
from recycle.megatron.flags import REFUSED, add_flags, read_flags
from recycle.megatron.other_data import OtherData
from recycle.megatron.patching import replace
from recycle.megatron.planning import Shape, Source
from recycle.megatron.release import require_known_release
from recycle.megatron.support import refusals, unsplit
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError
from recycle.runtime.stage import MicroBatch


class DropIn:
    """A plan in the place of Megatron's schedule, for the training that Megatron has just set up.

    Args:
        arguments: Megatron's, validated.

    Raises:
        RunError: this release of Megatron is not known.
        UserError: the job cannot be run by a plan; on the first rank only, the others exit.
    """

    def __init__(self, arguments: Any) -> None:
        require_known_release()
        self._arguments = arguments
        self._data: OtherData | None = None
        store = job_store()
        self._plan = share_plan(store, arguments)
        self._schedule = ScheduleAdapter(
            self._plan,
            store,
            self._other_data,
            steps=lambda: int(arguments.curr_iteration),
            seed=arguments.seed,
            rehearsal=True,
        )

    def get_forward_backward_func(self, *_: Any, **__: Any) -> ScheduleAdapter:
        """The schedule, whatever Megatron's function of this name is asked."""
        return self._schedule

    def keep_loader(self, build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Megatron's ``build_train_valid_test_data_loaders``, whose training loader shows where other data is."""

        @wraps(build)
        def build_train_valid_test_data_loaders(provider: Any) -> Any:
            loaders = build(provider)
            # Ranks that read no data have no loader.
            if loaders[0] is not None and self._plan.failed:
                job, repeats = self._plan.job, self._arguments.dataloader_type == "cyclic"
                self._data = OtherData(loaders[0], job.pipelines, job.micro_batches, self._arguments.iteration, repeats)
            return loaders

        return build_train_valid_test_data_loaders

    def _other_data(self, micro_batch: MicroBatch) -> Any:
        assert self._data is not None, f"{this_server()} reads data, and has no loader"
        return self._data(micro_batch)


def switch_on() -> None:
    """Replace what has to be, in the ``megatron.training`` that a script is about to use.

    Raises:
        RunError: this release of Megatron is not known.
    """
    require_known_release()
    from megatron.training import training
    from megatron.training.global_vars import get_args

    set_up = training.initialize_megatron

    @wraps(set_up)
    def initialize_megatron(extra_args_provider: Any = None, *positional: Any, **keywords: Any) -> Any:
        result = set_up(with_flags(extra_args_provider), *positional, **keywords)
        drop_in = DropIn(get_args())
        replace(training, "get_forward_backward_func", drop_in.get_forward_backward_func)
        build = training.build_train_valid_test_data_loaders
        replace(training, "build_train_valid_test_data_loaders", drop_in.keep_loader(build))
        return result

    replace(training, "initialize_megatron", initialize_megatron)


def with_flags(provider: Any) -> Callable[[Any], Any]:
    """An extra-arguments provider that adds recycle's flags to those of another one, if there is one."""

    def add(parser: Any) -> Any:
        return add_flags(parser if provider is None else provider(parser))

    return add


def job_store() -> Store:
    """The store where torchrun's processes have found each other, in a corner of its own."""
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(minutes=30),
    )
    return PrefixStore(f"recycle/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def share_plan(store: Store, arguments: Any) -> Plan:
    """Choose a plan on the first rank, for all of them.

    Raises:
        UserError: there is none; on the first rank only, the others exit.
    """
    if arguments.rank == 0:
        try:
            plan = choose_plan(arguments)
        except UserError as error:
            store.set("plan", "")
            raise RunError(str(error)) from error
        store.set("plan", encode_plan(plan).decode())
        return plan
    content = store.get("plan")
    if not content:
        sys.exit(REFUSED)
    return decode_plan(content, "the first rank's plan")


def choose_plan(arguments: Any) -> Plan:
    """The plan that some arguments of Megatron's ask for.

    Raises:
        UserError: a setting prevents it, or there is none.
    """

    def setting(name: str) -> Any:
        return getattr(arguments, name, None)

    for problem in refusals(setting):
        raise RunError(problem)
    flags = read_flags(arguments)
    pipelines = arguments.data_parallel_size
    micro_batches = arguments.global_batch_size // (arguments.micro_batch_size * pipelines)
    shape = Shape(pipelines, arguments.pipeline_model_parallel_size, micro_batches)
    return Source(flags, shape, list(unsplit(setting))).plan(flags.failures)
