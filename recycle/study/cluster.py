"""The servers of a study: which are dead, by stage and by pipeline."""

from recycle.plan.normalise import Counts


class Cluster:
    """A job's servers by pipeline and then stage, and spare ones behind them.

    Args:
        pipelines: of the job.
        depth: stages of a pipeline.
        spares: servers beyond the job's.
    """

    def __init__(self, pipelines: int, depth: int, spares: int = 0) -> None:
        self.pipelines = pipelines
        self.depth = depth
        self.spares = spares
        self.dead: set[int] = set()
        self._of_stage = [0] * depth
        self._of_pipeline = [0] * pipelines
        self._spares_dead = 0

    @property
    def job(self) -> int:
        """Servers of the job."""
        return self.pipelines * self.depth

    @property
    def size(self) -> int:
        """All servers."""
        return self.job + self.spares

    @property
    def live(self) -> int:
        """Servers that are alive, spares among them."""
        return self.size - len(self.dead)

    @property
    def live_spares(self) -> int:
        """Spare servers that are alive."""
        return self.spares - self._spares_dead

    @property
    def counts(self) -> Counts:
        """Dead servers of each stage."""
        return tuple(self._of_stage)

    @property
    def whole_pipelines(self) -> int:
        """Pipelines without a dead server."""
        return self._of_pipeline.count(0)

    def change(self, server: int, dead: bool) -> None:
        """A server dies or comes back."""
        assert (server in self.dead) is not dead, (server, dead)
        step = 1 if dead else -1
        self.dead ^= {server}
        if server >= self.job:
            self._spares_dead += step
        else:
            self._of_stage[server % self.depth] += step
            self._of_pipeline[server // self.depth] += step

    def has_dead_neighbours(self) -> bool:
        """Whether two neighbouring stages of a pipeline are dead, the last and the first among them."""
        return any(
            server < self.job and (server - server % self.depth + (server + 1) % self.depth) in self.dead
            for server in self.dead
            if self.depth > 1
        )

    def filled(self) -> Counts:
        """Dead servers of each stage when live spares have taken places, where most are dead first."""
        counts = list(self._of_stage)
        for _ in range(min(self.live_spares, sum(counts))):
            counts[max(range(self.depth), key=lambda stage: counts[stage])] -= 1
        return tuple(counts)
