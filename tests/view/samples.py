"""Plans and runs that only the views' tests need."""

import msgspec

from harness.examples import QUICK
from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.planned import timeline
from recycle.view.chart import make_chart
from recycle.view.chrome_trace import encode
from recycle.view.html import page
from recycle.view.panel import Panel
from recycle.view.subject import subject_of
from recycle.view.svg import draw as draw_svg
from recycle.view.terminal import draw as draw_terminal
from recycle.view.terminal import listing

SCRIPT = '<script>alert("&")</script>'


def small(pipelines=1, stages=1, micro_batches=1, failed=(), name="small", latency=0, **costs):
    settings = {"forward": 1, "input_gradient": 1, "weight_gradient": 1, "optimizer": 2, "reduction": 1} | costs
    stage = Stage(**settings, held=1, released_at_input_gradient=0, limit=stages)
    job = Job(pipelines, micro_batches, (stage,) * stages, (latency,) * (stages - 1), name)
    return make_plan(job, failed, Mode(), QUICK)


def chart_of(plan, iterations=1, grouping="stage"):
    subject = subject_of(plan, "plan", iterations)
    return make_chart(subject, grouping)


def measured(plan, iterations=2, unit="ms", pace=12.5):
    """A run that followed a plan and was a little quicker than it, by an amount that differs from span to span."""
    line = timeline(plan, iterations)
    spans = []
    for span in line.spans:
        share = 0.8 if span.instruction.micro_batch % 3 == 0 else 0.9
        start, length = span.start * pace, (span.end - span.start) * pace
        spans.append(msgspec.structs.replace(span, start=start, end=start + share * length))
    return msgspec.structs.replace(
        line,
        title="run 7",
        time_unit=unit,
        source="measured",
        period=None,
        spans=tuple(spans),
        samples=tuple(msgspec.structs.replace(each, time=each.time * pace) for each in line.samples),
        instants=tuple(msgspec.structs.replace(each, time=each.time * pace) for each in line.instants),
    )


def all_views(subject, grouping="stage"):
    """A subject in every view, as text."""
    chart = make_chart(subject, grouping)
    drawn = {
        "svg": draw_svg([chart]),
        "html": page([Panel(subject.name, chart, subject.timeline)]),
        "trace": encode([Panel("", chart, subject.timeline)]).decode(),
        "list": "\n".join(listing(subject)),
    }
    for width in (20, 80):
        for color in (False, True):
            [lines] = draw_terminal([chart], width, color=color)
            assert all(line.cell_len <= width for line in lines)
            drawn[f"terminal {width} {color}"] = "\n".join(line.plain for line in lines)
    return drawn


DEAD = Server(1, 2)
