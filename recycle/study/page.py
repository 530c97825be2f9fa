"""The page of a study: one HTML file with its sentence, tables, plots, and where each figure comes from."""

from collections.abc import Sequence
from html import escape

from recycle.study.answer import StudyAnswer
from recycle.study.plots import bucket_bars, lost_hours, over_time, throughput_lines
from recycle.study.tables import Curves
from recycle.wording import plural

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222 }
body { background: #fff }
div.t { overflow-x: auto } table { border-collapse: collapse; width: 100% }
td, th { padding: 3px 8px; border-bottom: 1px solid #ddd; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.a { font-size: 1.15em } .m { color: #666 } svg { max-width: 100%; height: auto }
"""
CAPTIONS = {
    "Throughput over time": "The first sample: green is the share of fault-free throughput, red ticks are failures.",
    "Where the time went": "Every second of every server that is paid for is in one bucket; the mean of the samples.",
    "Retention": "Throughput against the number of dead servers, over random sets of them.",
    "Cost": "What a year loses; the bars are intervals over samples and constants.",
}


def page(found: StudyAnswer, curves: Curves) -> str:
    """The whole page."""
    setting, policies = found.setting, found.policies
    job = setting.ground.job
    plots = (over_time(policies), bucket_bars(policies), throughput_lines(curves), lost_hours(policies, found.bill))
    figures = "\n".join(
        f"<h2>{title}</h2><p>{caption}</p>{plot}"
        for (title, caption), plot in zip(CAPTIONS.items(), plots, strict=True)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Study: {escape(job.name)}</title><style>{STYLE}</style></head><body>
<h1>What failures cost</h1>
<p class="a">{escape(found.sentence)}</p>
<h2>What was asked</h2>{_asked(found)}
<h2>Ways of surviving</h2>{_table(*found.policy_table())}
<p class="m">Goodput: useful training per server-hour paid for, over that of the job without failures. Low and high: the
least and the greatest over samples and constants. All figures of a row are of the same samples.</p>
<h2>The job's own choices</h2>{_table(*found.choice_table(paid=True))}
<p class="m">By <b>recycle</b>, the mean of the samples, against the throughput of the job as it is. A negative loss
is of a job that trains more than this one would without failures. Another batch is another training.</p>
{figures}
<h2>Throughput by the planner</h2>{_throughput(found)}
<h2>How each way is modelled</h2>{_sources(found)}
<p class="m">If checkpoint-interval is given, every way but fault-scaled stands still for checkpoint-cost as often.
Otherwise only restarts do.</p>
<h2>Constants</h2>{_constants(found)}
</body></html>
"""


def _asked(found: StudyAnswer) -> str:
    setting, bill = found.setting, found.bill
    ground, history = setting.ground, setting.history
    job = ground.job
    servers = job.pipelines * job.depth
    rows = [
        ["job", f"{job.name}: {job.pipelines} pipelines x {job.depth} stages x {job.micro_batches} micro-batches"],
        ["servers", f"{servers:,}" + (f" of {bill.gpus} GPUs: {servers * bill.gpus:,} GPUs" if bill.gpus else "")],
        ["iteration without failures", f"{ground.iteration:g} s"],
        ["layers", str(ground.layers)],
        ["failures", f"{history.name}, {history.seconds / 86_400:.4g} days, {setting.seeds} samples"],
    ]
    if history.outages is None:
        between = history.between_failures / 3600
        rows += [
            ["between failures of the job", f"{between / servers:.4g} h; of one server {between / 24:,.4g} days"],
            ["repair", f"{history.repair / 3600:.4g} h, the mean of an exponential distribution"],
        ]
    else:
        per_day = history.failures_per_second(servers) * 86_400
        rows += [["servers of the trace", str(history.outages.nodes)], ["failures of the job", f"{per_day:.3g} a day"]]
        rows += [[what, f"{plural(n, 'failure')}, counted as none"] for what, n in history.uncounted.items() if n]
    if bill.price:
        rows += [["price", f"{bill.price:g} for an hour of a server"]]
    return _table([], *rows)


def _throughput(found: StudyAnswer) -> str:
    rows = [[each.dead, f"{each.throughput:.4f}", each.basis] for each in found.throughput]
    return _table(["dead", "*of fault-free 1F1B", "from"], *rows)


def _sources(found: StudyAnswer) -> str:
    return _table(["policy", "model"], *([each.policy, each.source] for each in found.policies))


def _constants(found: StudyAnswer) -> str:
    rows = []
    for each in found.constants:
        typical = "computed" if each.typical is None else f"{each.typical:,.4g}"
        spread = "" if each.low == each.high or each.low is None else f"{each.low:,.4g} to {each.high:,.4g}"
        rows.append([each.name, typical, spread, each.source])
    return _table(["--constant", "*typical", "*of the intervals", "from"], *rows)


def _table(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Of text; columns whose header begins with a star are of numbers."""
    kinds = [' class="n"' if each.startswith("*") else "" for each in header]
    top = "".join(f"<th{kind}>{escape(each.lstrip('*'))}</th>" for kind, each in zip(kinds, header, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kinds[place] if kinds else ''}>{escape(cell)}</td>" for place, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="t"><table>{f"<tr>{top}</tr>" if top else ""}\n{body}</table></div>'
