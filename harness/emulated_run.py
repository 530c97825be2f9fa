"""A whole emulated run on this machine: a process per live server of a plan, and the measured time line."""

from collections.abc import Callable

import msgspec

from harness.emulated_stage import EmulatedStage, EmulatedUpdate, Sleeper
from harness.local import LocalProcess, launch
from recycle.control.membership.view import View
from recycle.holding import placed
from recycle.plan.plan import Plan
from recycle.record.recorder import UNIT, Recorder
from recycle.record.timeline import Span, Timeline
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.step.gradient_norm import Speculation


class ServerReport(msgspec.Struct, frozen=True):
    """What one emulated server saw.

    Attributes:
        spans: what it executed, in microseconds of the machine's monotonic clock.
        oversleep: mean time by which a sleep ended late, in seconds.
        speculation: how often it guessed the norm; None if nobody asked for it.
    """

    spans: list[Span]
    oversleep: float
    speculation: Speculation | None


class Emulation(msgspec.Struct, frozen=True):
    """What an emulated run measured.

    Attributes:
        timeline: of all servers, without the warm-up.
        oversleep: mean time by which a sleep ended late, in seconds, over all servers.
        reports: per server, in the order of the view.
    """

    timeline: Timeline
    oversleep: float
    reports: tuple[ServerReport, ...]


def emulate(
    plan: Plan,
    slot: float,
    iterations: int,
    warm_up: int = 1,
    size: int = 1024,
    norm: Callable[[int], float] | None = None,
) -> Emulation:
    """Run a plan with a process per live server, each sleeping its planned durations.

    Args:
        plan: a lowered plan.
        slot: seconds for one unit of the job's time.
        iterations: how many iterations are measured.
        warm_up: how many are run before, to connect all servers.
        size: numbers in a message.
        norm: of an iteration's gradient, warm-up included; a step must be made with what it is when 1 is allowed.

    Raises:
        RunError: the plan cannot run.
        ProcessFailed: a process failed.
    """
    view = View.of(plan)
    encoder = msgspec.json.Encoder(enc_hook=str)
    reports: dict[int, ServerReport] = {}

    def body(member: LocalProcess) -> None:
        server = view.servers[member.rank]
        network = connect(member.store(), view, server)
        recorder = Recorder(server)
        sleeper = Sleeper()
        update = EmulatedUpdate(plan.job, plan.mode.optimizer == "staggered", network, slot, sleeper, norm)
        chunks = placed(plan.job, server).chunks
        stages = [EmulatedStage(plan.job, server, each, slot, sleeper, size) for each in chunks]
        worker = Worker(plan, stages, update, network, recorder)
        for step in range(warm_up + iterations):
            if step == warm_up:
                network.barrier()
                recorder.clear()
                sleeper.restart()
            worker.run(step - warm_up)
        worker.settle()
        network.barrier()
        report = ServerReport(recorder.take_spans(), sleeper.mean_oversleep, update.speculation)
        member.report(encoder.encode(report))

    launch(
        len(view.servers),
        body,
        lambda rank, content: reports.update({rank: msgspec.json.decode(content, type=ServerReport)}),
    )
    ordered = tuple(reports[rank] for rank in range(len(view.servers)))
    spans = sorted((span for each in ordered for span in each.spans), key=lambda span: (span.server, span.start))
    return Emulation(
        timeline=Timeline(f"{plan.job.name}, emulated", UNIT, "measured", tuple(spans), (), ()).from_zero(),
        oversleep=sum(report.oversleep for report in ordered) / len(ordered),
        reports=ordered,
    )
