"""How commands show the variants of an optimization, from the record in evidence.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.output import Output

COLUMNS = (
    "Variant", "Verdict", "Accuracy>", "Drop>", "Max err>", "ms@1>", "ms@32>", "kB>",
)  # fmt: skip


def variants_table(output: Output, variants: Sequence[Mapping[str, Any]]) -> None:
    """Print one row for each variant (`optimize.evidence.variant_record`), then the reasons.

    `ms@N` is the median latency of a batch of N rows.
    """
    output.table(COLUMNS, (_row(variant) for variant in variants))
    for variant in variants:
        output.line(f"  {variant['recipe']}: {variant['reason']}")


def models_table(output: Output, models: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the variants of several models in one table."""
    rows = ((name, *_row(each)) for name, variants in models.items() for each in variants)
    output.table(("Model", *COLUMNS), rows, "Variants, measured on held-out rows")


def _row(variant: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = "chosen" if variant["chosen"] else "passes" if variant["passed"] else "refused"
    measured = variant["measured"]
    if measured is None:
        return (variant["recipe"], verdict, "", "", "", "", "", "")
    latency = {batch["batch"]: batch["median_ms"] for batch in measured["latency"]}
    return (
        variant["recipe"],
        verdict,
        _number(measured["accuracy"], ".4f"),
        _number(measured["accuracy_drop"], "+.4f"),
        _number(measured["parity"]["max_abs_error"], ".2g"),
        _number(latency.get(1), ".3f"),
        _number(latency.get(32), ".3f"),
        _number(measured["size_bytes"] / 1000, ".1f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
