"""A run in which W1_2 is killed and comes back, as its servers and its launcher would have written it."""

from collections import defaultdict
from pathlib import Path

import msgspec

from harness.examples import paper_plan
from harness.recordings import write_events
from recycle.job import Server
from recycle.record.planned import timeline
from recycle.record.recording import AbandonedLine, DeathLine, IterationLine, RecoveryLine, RunLine, ViewLine
from recycle.record.timeline import Timeline

SLOT = 1000
VICTIM = Server(1, 2)
DEATH, VIEW, RESUMED, REJOIN = 50_000, 53_000, 56_500, 128_000
"""In the run's microseconds: iteration 1 is begun at 34000, and made again from RESUMED on."""


def without_last_words(line: Timeline) -> Timeline:
    """The time line as it is where the victim has recorded nothing of the iteration in which it died."""
    spans = tuple(span for span in line.spans if span.server != VICTIM or span.iteration != 1)
    return msgspec.structs.replace(line, spans=spans)


def write_disturbed(folder: Path) -> Path:
    """A directory of four iterations: the second is interrupted, and made again without the victim."""
    whole, around = paper_plan(failed=()), paper_plan(failed=(VICTIM,))
    files = defaultdict(list)

    def make(plan, iteration, epoch, begin, until=float("inf")):
        for span in timeline(plan, 1).spans:
            end = begin + span.end * SLOT
            if end > until:
                continue
            moved = msgspec.structs.replace(span, start=begin + span.start * SLOT, end=end, iteration=iteration)
            files[name(span.server, epoch)].append(moved.line())
        if until == float("inf"):
            for server in plan.programs:
                losses = [4.0 - iteration] * 18 if server.stage == 3 else []
                line = IterationLine(str(server), iteration, 0.03, losses, 4, epoch)
                files[name(server, epoch)].append(line)

        else:
            for server in plan.programs:
                first = min(line.start for line in files[name(server, epoch)] if getattr(line, "iteration", 0) == 1)
                files[name(server, epoch)] += [AbandonedLine(str(server), epoch, 1, first)] if server != VICTIM else []

    def name(server, epoch):
        return f"{server}#1" if server == VICTIM and epoch == 2 else str(server)

    def view(plan, epoch, time, step, joined=(), cause="the run begins"):
        servers = [str(each) for each in plan.programs]
        return ViewLine(
            epoch, time, servers, list(joined), step, cause, "memory", plan.period, plan.throughput, "the catalogue"
        )

    def pause(plan, epoch, step, times):
        for late, server in enumerate(plan.programs):
            noticed, *others, redone = (time + 20 * late for time in times)
            files[str(server)].append(RecoveryLine(str(server), epoch, step, noticed, *others, redone))

    death = DeathLine(str(VICTIM), 0, DEATH, "was killed by signal 9 (SIGKILL)", "agent", 1)
    first, second = view(whole, 0, 0, 0), view(around, 1, VIEW, 1, cause="W1_2 was killed by signal 9 (SIGKILL)")
    third = view(whole, 2, REJOIN, 3, [str(VICTIM)], "W1_2 joins")
    files["launcher"] += [first, death, second, third]
    # The first servers tell of views, too, each at its own time.
    files["W0_0"] += [death, msgspec.structs.replace(second, time=VIEW + 200)]
    make(whole, 0, 0, 0)
    make(whole, 1, 0, 34_000, DEATH)
    make(around, 1, 1, RESUMED)
    make(around, 2, 1, RESUMED + 34_000)
    make(whole, 3, 2, REJOIN + 4000)
    pause(around, 1, 1, (DEATH + 900, VIEW, VIEW + 1500, VIEW + 2200, RESUMED, RESUMED + 32_000))
    pause(around, 2, 3, (REJOIN - 1000, REJOIN, REJOIN + 2500, REJOIN + 3000, REJOIN + 4000, REJOIN + 34_000))
    head = RunLine("recycle run", 1, "paper, trained", "us", "measured")
    write_events(folder, {stem: [head, *lines] for stem, lines in files.items()})
    return folder
