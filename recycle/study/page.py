"""The page of a study: one HTML file with its table, its plots and where its constants come from."""

from collections.abc import Sequence
from html import escape

from recycle.study.compare import PolicyComparison, StudySetting
from recycle.study.plots import bucket_bars, lost_hours, over_time, retention_lines
from recycle.study.tables import Curves

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { padding: 3px 8px; border-bottom: 1px solid #ddd }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.m { color: #777 } svg { max-width: 100%; height: auto }
"""
CAPTIONS = {
    "Throughput over time": "Green is throughput as a share of the fault-free job's; red ticks are failures.",
    "Where the time went": "Every second of every server that is paid for is in one bucket.",
    "Retention": "Throughput against the number of dead servers, over drawn sets of them.",
    "Cost": "Server-hours that leave no training; the bars are intervals over deals of the trace and constants.",
}


def page(setting: StudySetting, comparisons: Sequence[PolicyComparison], curves: Curves) -> str:
    """The whole page."""
    job, outages = setting.ground.job, setting.outages
    head = (
        f"{job.name}: {job.pipelines} pipelines x {job.depth} stages x {job.micro_batches} micro-batches, "
        f"{setting.ground.iteration:g} s an iteration; {outages.name}: {outages.nodes} places, "
        f"{outages.seconds / 86_400:.3g} days, {setting.seeds} deals"
    )
    plots = (over_time(comparisons), bucket_bars(comparisons), retention_lines(curves), lost_hours(comparisons))
    figures = "\n".join(
        f"<h2>{title}</h2><p>{caption}</p>{plot}"
        for (title, caption), plot in zip(CAPTIONS.items(), plots, strict=True)
    )
    sources = "\n".join(f"<li><b>{escape(each.policy)}</b>: {escape(each.source)}</li>" for each in comparisons)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Study: {escape(job.name)}</title><style>{STYLE}</style></head><body>
<h1>What failures cost</h1>
<p>{escape(head)}</p>
{_table(comparisons)}
<p class="m">Value: useful samples per server-hour paid for, over those of the fault-free job. Model only: not built in
this project, or no policy at all.</p>
{figures}
<h2>Constants</h2><ul>{sources}</ul>
</body></html>
"""


def _table(comparisons: Sequence[PolicyComparison]) -> str:
    rows = "\n".join(
        f"<tr><td>{escape(each.policy)}{' <span class=m>(model only)</span>' if each.model_only else ''}</td>"
        f'<td class="n">{each.mean:.4f}</td><td class="n">{each.low:.4f} to {each.high:.4f}</td>'
        f'<td class="n">{each.outcome.paid}</td><td class="n">{each.outcome.lost_hours:,.0f}</td></tr>'
        for each in comparisons
    )
    return (
        '<table><tr><th>policy</th><th class="n">value</th><th class="n">interval</th><th class="n">servers paid</th>'
        f'<th class="n">server-hours lost</th></tr>\n{rows}</table>'
    )
