"""What a study found, as CSV for those who plot themselves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recycle.files import csv_text, write_whole
from recycle.study.answer import StudyAnswer
from recycle.study.buckets import Bucket

TABLES = ("policies.csv", "choices.csv", "timeline.csv", "throughput.csv")
"""The files."""

Curves = Mapping[str, Sequence[tuple[int, float]]]


def write_tables(folder: Path, found: StudyAnswer, curves: Curves) -> None:
    """Write ``TABLES``.

    Raises:
        UserError: they cannot be written.
    """
    policies, bill = found.policies, found.bill
    buckets = [bucket.value for bucket in Bucket]
    losses = [
        f"lost_{what}_a_year{end}" for what in ("server_hours", "gpu_hours", "money") for end in ("", "_low", "_high")
    ]
    rows = []
    for each in policies:
        lost = (each.lost, each.lost_with(each.high), each.lost_with(each.low))
        rows.append(
            [
                *(each.policy, each.model_only, each.goodput, each.low, each.high, each.outcome.paid),
                *lost,
                *(bill.hours(hours) if bill.gpus else "" for hours in lost),
                *(bill.money(hours) if bill.price else "" for hours in lost),
                each.failures,
                *(each.shares[bucket] for bucket in Bucket),
            ]
        )
    header = ["policy", "model_only", "goodput", "low", "high", "servers_paid", *losses, "failures", *buckets]
    tables = (
        _csv(header, rows),
        _csv(
            ["what", "choice", "is_present", "goodput", "lost_server_hours_a_year", "saved_server_hours_a_year"],
            ([each.topic, each.choice, each.is_present, each.goodput, each.lost, each.saved] for each in found.choices),
        ),
        _csv(
            ["policy", "start", "end", "rate", "bucket", "live"],
            (
                [each.policy, span.start, span.end, span.rate, span.bucket.value, span.live]
                for each in policies
                for span in each.outcome.spans
            ),
        ),
        _csv(
            ["policy", "dead", "rate"],
            ([policy, dead, rate] for policy, curve in curves.items() for dead, rate in curve),
        ),
    )
    for name, table in zip(TABLES, tables, strict=True):
        write_whole(folder / name, table)


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    return csv_text([header, *rows]).encode()
