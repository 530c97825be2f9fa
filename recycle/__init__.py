"""ReCycle: fault-tolerant pipeline-parallel training that re-routes work around failed servers.

Planning from Python, without torch::

    import recycle

    job = recycle.Job(pipelines=3, stages=4, micro_batches=6, optimizer=3)
    plan = recycle.make_plan(job, dead=["W1_2"])
    print(plan.period, plan.bound, plan.explain().time)

``recycle.api.planned`` and ``recycle.api.sweep`` say more. What is named here is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recycle.version import __version__

if TYPE_CHECKING:
    from recycle.api.planned import Planned, load_job, load_plan, make_plan
    from recycle.api.planned import make_job as Job  # noqa: N812 - reads as what it makes
    from recycle.api.sweep import sweep

__all__ = ["Job", "Planned", "__version__", "load_job", "load_plan", "make_plan", "sweep"]
_PLACES = {"sweep": "recycle.api.sweep"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'recycle' has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "recycle.api.planned")), "make_job" if name == "Job" else name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
