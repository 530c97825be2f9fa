"""What a study found, as CSV for those who plot themselves."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recycle.files import write_whole
from recycle.study.buckets import Bucket
from recycle.study.compare import PolicyComparison

Curves = Mapping[str, Sequence[tuple[int, float]]]


def write_tables(folder: Path, comparisons: Sequence[PolicyComparison], curves: Curves) -> None:
    """Write ``policies.csv``, ``timeline.csv`` and ``retention.csv``.

    Raises:
        UserError: they cannot be written.
    """
    buckets = [bucket.value for bucket in Bucket]
    write_whole(
        folder / "policies.csv",
        _csv(
            ["policy", "model_only", "value", "low", "high", "servers_paid", "lost_server_hours", "failures", *buckets],
            (
                [
                    each.policy,
                    each.model_only,
                    each.mean,
                    each.low,
                    each.high,
                    each.outcome.paid,
                    each.outcome.lost_hours,
                    len(each.outcome.failures),
                    *(each.outcome.buckets[bucket] for bucket in Bucket),
                ]
                for each in comparisons
            ),
        ),
    )
    write_whole(
        folder / "timeline.csv",
        _csv(
            ["policy", "start", "end", "rate", "bucket", "live"],
            (
                [each.policy, span.start, span.end, span.rate, span.bucket.value, span.live]
                for each in comparisons
                for span in each.outcome.spans
            ),
        ),
    )
    write_whole(
        folder / "retention.csv",
        _csv(
            ["policy", "dead", "rate"],
            ([policy, dead, rate] for policy, curve in curves.items() for dead, rate in curve),
        ),
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()
