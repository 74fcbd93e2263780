"""Tables of the variants of an optimization, from `optimize.result.evidence.variant_record`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlctl.cli.output import CommandOutput

NONE = "-"


def variants_table(output: CommandOutput, variants: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per measured variant, then the reasons of all."""
    sizes = _timed_sizes(variants)
    columns = ("Variant", "Verdict", *number_columns(sizes))
    rows = (_row(variant, sizes) for variant in variants if variant["measured"] is not None)
    output.table(*filled(columns, rows))
    for note in latency_notes(variants):
        output.line(f"  {note}")
    for variant in variants:
        output.line(f"  {variant['recipe']}: {variant['reason']}")
        measured = variant["measured"]
        if measured is not None and measured["details"]["remark"]:
            output.line(f"    {measured['details']['remark']}")


def models_table(output: CommandOutput, models: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the variants of several models in one table."""
    sizes = _timed_sizes([each for variants in models.values() for each in variants])
    rows = ((name, *_row(each, sizes)) for name, variants in models.items() for each in variants)
    columns = ("Model", "Variant", "Verdict", *number_columns(sizes))
    output.table(*filled(columns, rows), "Variants, measured on held-out rows")


def number_columns(sizes: Sequence[int]) -> tuple[str, ...]:
    """Return the titles of `number_cells`.

    `Drop max` is the upper bound that the gate uses; `ms@N` is the median latency of N rows. Only
    language models have `First ms`, the time to the first token, and `Tokens/s`.
    """
    times = (*(f"ms@{size}>" for size in sizes), "First ms>", "Tokens/s>")
    return ("Score>", "Drop>", "Drop max>", "Agree>", "Cosine>", *times, "Size>")


def number_cells(measured: Mapping[str, Any] | None, sizes: Sequence[int]) -> tuple[str, ...]:
    """Return the numbers of a measured variant, or dashes for one without.

    `sizes` are the batch sizes whose latency is shown.
    """
    if measured is None:
        return (NONE,) * len(number_columns(sizes))
    score = measured["score"]
    generates = measured.get("tokens_per_second") is not None
    latency = (
        {} if generates else {batch["batch"]: batch["median_ms"] for batch in measured["latency"]}
    )
    return (
        _number(score and score["value"], "z.4f"),
        _number(score and score["drop"]["value"], "+z.4f"),
        _number(score and score["drop"]["high"], "+z.4f"),
        _number(measured["parity"]["agreement"], "z.4f"),
        _number(measured["parity"]["centred_cosine"], "z.4f"),
        *(_number(latency.get(size), ".3f") for size in sizes),
        _number(measured.get("first_token_ms"), ".3f"),
        _number(measured.get("tokens_per_second"), ".1f"),
        _size(measured["size_bytes"]),
    )


def _timed_sizes(variants: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the smallest and the largest batch size that the variants were timed at."""
    measured = (variant["measured"] for variant in variants)
    sizes = {batch["batch"] for each in measured if each for batch in each["latency"]}
    return tuple(sorted({min(sizes), max(sizes)})) if sizes else ()


def latency_notes(variants: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why the table has no latency of the largest batch, for all variants or for some."""
    found = {each["recipe"]: each["measured"] for each in variants if each["measured"] is not None}
    if any(measured["prompt_tokens"] is not None for measured in found.values()):
        return
    if not all(measured["latency"] for measured in found.values()):
        yield "No latencies: the target is not on this machine."
        return
    alone = [recipe for recipe, measured in found.items() if not measured["row_independent"]]
    if alone:
        which = "" if len(alone) == len(found) else f" ({', '.join(alone)})"
        yield (
            f"Timed for single rows only{which}: the rows of a batch affect each other, so "
            "requests are not batched."
        )


def filled(
    columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Drop the columns without any value from `columns` and `rows`."""
    found = list(rows)
    kept = [i for i in range(len(columns)) if not found or any(row[i] != NONE for row in found)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in found]


def _row(variant: Mapping[str, Any], sizes: Sequence[int]) -> tuple[str, ...]:
    return (variant["recipe"], variant["verdict"], *number_cells(variant["measured"], sizes))


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _size(count: int) -> str:
    kilobytes = count / 1000
    return f"{kilobytes:.1f} kB" if kilobytes < 1000 else f"{kilobytes / 1000:.1f} MB"
