"""ReCycle: fault-tolerant pipeline-parallel training that re-routes work around failed servers.

Planning, studies and recorded runs from Python, without torch::

    import recycle

    job = recycle.Job(pipelines=3, stages=4, micro_batches=6, optimizer=3)
    plan = recycle.make_plan(job, dead=["W1_2"])
    print(plan.period, plan.bound, plan.explain().time)

docs/reference/python.md has the rest. What is named here is imported when it is first used.
"""

from recycle.version import __version__

# The same as typing's. Until the command line takes Ctrl-C, nothing is imported that takes time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from recycle.api.planned import Planned, load_job, load_plan, make_plan
    from recycle.api.planned import make_job as Job  # noqa: N812 - it makes jobs as a type would
    from recycle.api.runs import RecordedRun, read_run
    from recycle.api.studies import PlanCatalogue, compare_policies, make_catalogue

__all__ = [
    "Job",
    "PlanCatalogue",
    "Planned",
    "RecordedRun",
    "__version__",
    "compare_policies",
    "load_job",
    "load_plan",
    "make_catalogue",
    "make_plan",
    "read_run",
]
_STUDIES, _RUNS = "recycle.api.studies", "recycle.api.runs"
_PLACES = {
    "PlanCatalogue": _STUDIES,
    "compare_policies": _STUDIES,
    "make_catalogue": _STUDIES,
    "RecordedRun": _RUNS,
    "read_run": _RUNS,
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'recycle' has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "recycle.api.planned")), "make_job" if name == "Job" else name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
