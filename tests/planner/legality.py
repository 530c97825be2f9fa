"""What makes task programs legal, stated once more and as plainly as possible."""

from recycle.planner.model.objective import timing


def assert_legal(problem, programs):
    job = problem.job
    assert set(programs) == {server for server in job.servers() if server not in problem.dead}
    for stage in range(job.depth):
        executed = [task for server, tasks in programs.items() if server.stage == stage for task in tasks]
        assert sorted(executed) == [unit * 3 + kind for unit in range(problem.total) for kind in range(problem.kinds)]
    for server, tasks in programs.items():
        level, done = 0, set()
        for task in tasks:
            unit, kind = divmod(task, 3)
            assert all(earlier in done for earlier in range(unit * 3, task)), "the phases of a micro-batch, in order"
            home = unit // job.micro_batches
            if problem.mode.routing == "home":
                assert home == server.pipeline or home not in problem.live[server.stage]
            stage = job.stages[server.stage]
            level += (stage.held, stage.taken_at_input_gradient, 0)[kind]
            assert level <= stage.limit
            level -= problem.release[server.stage][kind]
            done.add(task)
        assert level == 0
    timing(problem, programs)  # raises Deadlock
