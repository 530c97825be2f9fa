"""What a measured time line implies: when iterations ended, and what servers held."""

from bisect import bisect

from recycle.job import Job, Server
from recycle.plan.memory import memory_changes
from recycle.record.recording import SampleLine
from recycle.record.timeline import Timeline


def iteration_ends(timeline: Timeline) -> dict[int, float]:
    """When the last server had finished each iteration; one that was made again ended when that had."""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        if span.lane == "compute":
            ends[span.iteration] = max(ends.get(span.iteration, span.end), span.end)
    return ends


def held_memory(timeline: Timeline, job: Job) -> tuple[SampleLine, ...]:
    """What each server held for activations, by the job's memory rule; an iteration that was given up is forgotten.

    Args:
        timeline: of a run.
        job: that it trained.
    """
    changes = [memory_changes(stage) for stage in job.stages]
    views = timeline.views
    samples: list[SampleLine] = []
    level = 0
    made: tuple[Server, int, int] | None = None
    for span in timeline.spans:
        if span.lane != "compute" or not 0 <= span.instruction.stage < len(changes):
            continue
        now = (span.server, bisect(views, span.start), span.iteration)
        if now != made:
            # What is left over is of micro-batches that nobody finished.
            level, made = 0, now
            samples.append(SampleLine(str(span.server), span.start, 0))
        taken, freed = changes[span.instruction.stage][span.instruction.op]
        if taken:
            samples.append(SampleLine(str(span.server), span.start, level + taken))
        if freed:
            samples.append(SampleLine(str(span.server), span.end, level + taken - freed))
        level += taken - freed
    return tuple(samples)
