"""The plots of a study, as SVG, by matplotlib."""

import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from recycle.errors import UserError
from recycle.study.answer import Bill
from recycle.study.buckets import Bucket
from recycle.study.compare import PolicyComparison
from recycle.study.tables import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    Bucket.USEFUL: "#3a8f4d",
    Bucket.REDONE: "#c0392b",
    Bucket.WAITING: "#e0b040",
    Bucket.REPLANNING: "#7a56a8",
    Bucket.MOVING: "#2f6db5",
    Bucket.RESTARTING: "#e07020",
    Bucket.SNAPSHOT: "#60b0c0",
    Bucket.UNUSED: "#b0b0b0",
    Bucket.DEAD: "#404040",
}
MOST_MARKS = 400

MISSING = "plots need matplotlib: pip install matplotlib, or leave -o out"


def over_time(comparisons: Sequence[PolicyComparison]) -> str:
    """Throughput over time, a row per policy, with failures marked."""

    def draw(axes: "Sequence[Axes]") -> None:
        days = 86_400
        for axis, each in zip(axes, comparisons, strict=True):
            spans = each.outcome.spans
            times = [span.start / days for span in spans] + [each.outcome.seconds / days]
            axis.stairs([span.rate for span in spans], times, fill=True, color=COLORS[Bucket.USEFUL], alpha=0.8)
            marks = each.outcome.failures[:: 1 + len(each.outcome.failures) // MOST_MARKS]
            axis.vlines([time / days for time in marks], 1.02, 1.12, color=COLORS[Bucket.REDONE], linewidth=0.5)
            axis.set_ylim(0, 1.15)
            axis.set_ylabel(each.policy, rotation=0, ha="right", va="center")
        axes[-1].set_xlabel("days")

    return _figure(draw, rows=len(comparisons), height=0.7 * len(comparisons) + 0.6)


def bucket_bars(comparisons: Sequence[PolicyComparison]) -> str:
    """Shares of server-time per policy, by bucket."""

    def draw(axes: "Sequence[Axes]") -> None:
        (axis,) = axes
        names = [each.policy for each in comparisons][::-1]
        left = [0.0] * len(names)
        for bucket in Bucket:
            shares = [each.shares[bucket] for each in comparisons][::-1]
            axis.barh(names, shares, left=left, color=COLORS[bucket], label=bucket.value)
            left = [before + share for before, share in zip(left, shares, strict=True)]
        axis.set_xlim(0, 1)
        axis.set_xlabel("share of the server-time that is paid for")
        axis.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)

    return _figure(draw, height=0.35 * len(comparisons) + 1.3)


def throughput_lines(curves: Curves) -> str:
    """Throughput against the number of dead servers."""

    def draw(axes: "Sequence[Axes]") -> None:
        (axis,) = axes
        for name, curve in curves.items():
            style = "--" if name == "fault-scaled" else "-"
            axis.plot([dead for dead, _ in curve], [rate for _, rate in curve], style, marker=".", label=name)
        axis.set_xlabel("dead servers")
        axis.set_ylabel("share of fault-free throughput")
        axis.set_ylim(0, 1.05)
        axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return _figure(draw, height=4)


def lost_hours(comparisons: Sequence[PolicyComparison], bill: Bill) -> str:
    """Hours a year that are paid for and leave no training, with the interval over samples and constants."""

    def draw(axes: "Sequence[Axes]") -> None:
        (axis,) = axes
        ranked = comparisons[::-1]
        lost = [bill.hours(each.lost) for each in ranked]
        # A mean may be off its samples by the last digit.
        low = [max(0.0, bill.hours(each.lost - each.lost_with(each.high))) for each in ranked]
        high = [max(0.0, bill.hours(each.lost_with(each.low) - each.lost)) for each in ranked]
        axis.barh([each.policy for each in ranked], lost, xerr=[low, high], color=COLORS[Bucket.REDONE], capsize=2)
        axis.set_xlabel(f"{bill.unit} lost a year")

    return _figure(draw, height=0.35 * len(comparisons) + 0.8)


def _figure(draw: "Callable[[Sequence[Axes]], None]", height: float, rows: int = 1) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(MISSING) from error
    # A fixed salt and no date, so that equal studies make equal pages.
    with mpl.rc_context({"svg.hashsalt": "recycle", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(list(figure.subplots(rows, 1, sharex=True, squeeze=False).flat))
        text = io.StringIO()
        # Of letters that its font lacks it warns, and draws boxes.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
