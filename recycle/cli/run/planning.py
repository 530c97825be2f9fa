"""What plans while a run goes on, for the processes of the run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recycle.megatron.gpt.run_settings import Run
    from recycle.runtime.recover.plans import Planning


def planning_of(run: "Run") -> "Planning":
    """What plans around dead servers, and decides whether chunks move, if the run was asked to move them."""
    from recycle.planner.moving import ChunkMover
    from recycle.planner.source import plan_maker
    from recycle.runtime.recover.plans import Planning

    make = plan_maker(run.plan.job, run.plan.mode)
    return Planning(make, None if run.outlook is None else ChunkMover(run.plan, run.outlook))
