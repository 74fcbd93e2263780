"""How a lasting split is shown: both versions, and their difference with its interval."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlctl.rollout.domain.spec import Revision
    from mlctl.rollout.domain.traffic.split import Difference, SlotRecord, Split, SplitRecord


def split_lines(live: Revision, split: Split, record: SplitRecord) -> list[str]:
    """Return a line for each version and one for each difference."""
    lines = [
        f"split    {revision.bento} {percent} %: {_slot_text(each)}"
        for revision, percent, each in (
            (live, 100 - split.percent, record.live),
            (split.revision, split.percent, record.other),
        )
    ]
    differences = (
        ("mean latency", record.latency.difference(), 1.0, "ms"),
        ("failed", record.errors.difference(), 100.0, "points"),
    )
    words = [
        f"{name} {_difference_text(found, scale, unit)}"
        for name, found, scale, unit in differences
        if found is not None
    ]
    if words:
        lines.append(f"         {split.revision.bento} against {live.bento}: {'; '.join(words)}")
    return lines


def _slot_text(record: SlotRecord) -> str:
    share = 100.0 * record.errors / record.requests if record.requests else 0.0
    texts = [f"{record.requests:,} requests", f"{share:.2f} % failed"]
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        edge = record.quantile(quantile)
        if edge is not None:
            texts.append(f"{name} {edge:g} ms")
    return ", ".join(texts)


def _difference_text(found: Difference, scale: float, unit: str) -> str:
    text = f"{scale * found.value:+.2f} {unit}"
    if found.low is None or found.high is None:
        return f"{text} (too early for an interval)"
    return f"{text} (95 %: {scale * found.low:+.2f} to {scale * found.high:+.2f})"


def split_document(split: Split | None, record: SplitRecord | None) -> dict[str, Any] | None:
    """Return a split as --json shows it; shares from 0 to 1, latencies in milliseconds."""
    if split is None or record is None:
        return None
    differences = {
        "mean_latency_ms": record.latency.difference(),
        "error_share": record.errors.difference(),
    }
    return {
        "bento": split.revision.bento,
        "digest": split.revision.digest,
        "percent": split.percent,
        "sticky": split.sticky,
        "started": split.started,
        "measured": {"live": _slot_document(record.live), "other": _slot_document(record.other)},
        "difference": {
            name: None if found is None else asdict(found) for name, found in differences.items()
        },
    }


def _slot_document(record: SlotRecord) -> dict[str, Any]:
    return {
        "requests": record.requests,
        "errors": record.errors,
        "p50_ms": record.quantile(0.5),
        "p99_ms": record.quantile(0.99),
    }
