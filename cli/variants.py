"""Tables of the variants of an optimization (records of `optimize.evidence.variant_record`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cli.output import CommandOutput

# `Drop max` is the upper bound that the gate uses; `ms@N` is the median latency of N rows. Only
# language models have `First ms`, the time to the first token, and `Tokens/s`.
NUMBERS = (
    *("Score>", "Drop>", "Drop max>", "Agree>", "Cosine>"),
    *("ms@1>", "ms@32>", "First ms>", "Tokens/s>", "Size>"),
)
COLUMNS = ("Variant", "Verdict", *NUMBERS)
NONE = "-"


def variants_table(output: CommandOutput, variants: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per variant, then the reasons."""
    output.table(*filled(COLUMNS, (_row(variant) for variant in variants)))
    for variant in variants:
        output.line(f"  {variant['recipe']}: {variant['reason']}")


def models_table(output: CommandOutput, models: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the variants of several models in one table."""
    rows = ((name, *_row(each)) for name, variants in models.items() for each in variants)
    output.table(*filled(("Model", *COLUMNS), rows), "Variants, measured on held-out rows")


def number_cells(measured: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of NUMBERS for a measured variant, or dashes for a failed one."""
    if measured is None:
        return (NONE,) * len(NUMBERS)
    score = measured["score"]
    generates = measured.get("tokens_per_second") is not None
    latency = (
        {} if generates else {batch["batch"]: batch["median_ms"] for batch in measured["latency"]}
    )
    return (
        _number(score and score["value"], ".4f"),
        _number(score and score["drop"]["value"], "+.4f"),
        _number(score and score["drop"]["high"], "+.4f"),
        _number(measured["parity"]["agreement"], ".4f"),
        _number(measured["parity"]["centred_cosine"], ".4f"),
        _number(latency.get(1), ".3f"),
        _number(latency.get(32), ".3f"),
        _number(measured.get("first_token_ms"), ".3f"),
        _number(measured.get("tokens_per_second"), ".1f"),
        _size(measured["size_bytes"]),
    )


def filled(
    columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Drop the columns without any value from `columns` and `rows`."""
    found = list(rows)
    kept = [i for i in range(len(columns)) if not found or any(row[i] != NONE for row in found)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in found]


def _row(variant: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = "chosen" if variant["chosen"] else "passes" if variant["passed"] else "rejected"
    measured = variant["measured"]
    return (variant["recipe"], verdict if measured else "failed", *number_cells(measured))


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _size(count: int) -> str:
    kilobytes = count / 1000
    return f"{kilobytes:.1f} kB" if kilobytes < 1000 else f"{kilobytes / 1000:.1f} MB"
