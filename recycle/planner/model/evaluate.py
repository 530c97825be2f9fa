"""The value of task programs, by the clock's one cost function."""

from recycle.plan.clock import activity_network
from recycle.plan.timing import Timing, global_timing, staggered_timing
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import Problem, Programs


def timing(problem: Problem, programs: Programs) -> Timing:
    """When the tasks run; nodes are numbered over the servers in order.

    Raises:
        Deadlock: the order has a cycle.
    """
    work = activity_network(problem.job, instructions(problem, programs))
    return staggered_timing(work) if problem.staggered else global_timing(work)


def value(problem: Problem, programs: Programs) -> int:
    """What planning minimises: the period of a staggered plan, the makespan of a global one.

    Raises:
        Deadlock: the order has a cycle.
    """
    result = timing(problem, programs)
    return result.period if problem.staggered else result.makespan
