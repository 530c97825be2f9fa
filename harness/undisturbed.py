"""Training of Megatron's that tests compare with, made once for all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.flag_runs import Printed, train
from harness.gpt_runs import OPTIONS, Result, train_by_plan, train_by_stock
from harness.shared_runs import SharedRun, SharedRuns
from recycle.job import Job, Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.plan.plan import Plan


def trained_by_plan(runs: SharedRuns, plan: Plan, steps: int, options: ModelOptions = OPTIONS) -> dict[Server, Result]:
    """See ``train_by_plan``."""
    return _results(runs, ("by plan", plan, steps, options), lambda: train_by_plan(plan, steps, options))


def trained_by_stock(
    runs: SharedRuns, job: Job, steps: int, options: ModelOptions = OPTIONS, **settings: Any
) -> dict[Server, Result]:
    """See ``train_by_stock``."""
    said = {name: each.__qualname__ if callable(each) else each for name, each in sorted(settings.items())}
    make = lambda: train_by_stock(job, steps, options, **settings)  # noqa: E731 - as short as above
    return _results(runs, ("by stock", job, steps, options, said), make)


def _results(runs: SharedRuns, settings: object, make: Callable[[], dict[Server, Result]]) -> dict[Server, Result]:
    left = runs.run(settings, lambda _: list(make().items()), list[tuple[Server, Result]]).left
    return dict(left)


def trained_by_script(
    runs: SharedRuns, dataset: Path, *arguments: object, saves: Sequence[object] = (), **settings: Any
) -> SharedRun[Printed]:
    """See ``flag_runs.train``.

    Args:
        runs: of the session.
        dataset: a copy of that which all tests have; it need not be the one that the run was made with.
        arguments: of the script.
        saves: further ones, after which comes the folder that checkpoints are written to.
        settings: of ``train``.
    """

    def make(folder: Path) -> Printed:
        return train(dataset, *arguments, *([*saves, folder] if saves else []), **settings)

    return runs.run(("by script", arguments, saves, sorted(settings.items())), make, Printed)
