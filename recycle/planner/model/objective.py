"""What planning minimises: the value of task programs, by the clock's one cost function."""

from recycle.holding import placed
from recycle.plan.clock import activity_network
from recycle.plan.timing import Timing, global_timing, staggered_timing
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import Problem, Programs


def is_whole(problem: Problem, programs: Programs) -> bool:
    """Whether programs execute every task of the problem once.

    A schedule that lacks some looks better than it is, for what is not done takes no time.
    """
    width = 3 * problem.total
    found = bytearray(width * len(problem.job.stages))
    for server, tasks in programs.items():
        chunks = placed(problem.job, server).chunks
        for task in tasks:
            found[chunks[task // width] * width + task % width] = 1
    return found.count(1) == problem.tasks == sum(map(len, programs.values()))


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
