"""Write the tables and charts of benchmarks/README.md from result documents.

`python -m benchmarks.page FOLDER` reads FOLDER/*.json. Each program's results replace the text
between `<!-- PROGRAM -->` and `<!-- /PROGRAM -->`; charts go to benchmarks/charts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks.result import BarChart, BenchmarkResult, ResultTable, RunConditions

README = Path(__file__).with_name("README.md")
_WIDTH, _LABEL_WIDTH, _VALUE_WIDTH, _ROW_HEIGHT, _TOP = 720, 260, 80, 22, 34


def bar_chart(chart: BarChart) -> str:
    """Return `chart` as SVG: a horizontal bar from zero with its value for each label."""
    largest = max(chart.values.values(), default=0.0) or 1.0
    height = _TOP + _ROW_HEIGHT * len(chart.values) + 8
    title = escape(f"{chart.title} ({chart.unit})")
    parts = [f'<text x="0" y="18" font-weight="bold">{title}</text>']
    for index, (label, value) in enumerate(chart.values.items()):
        y = _TOP + _ROW_HEIGHT * index
        length = value / largest * (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH)
        number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        parts += [
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="16" fill="#3367a6"/>',
            f'<text x="{_LABEL_WIDTH + length + 6:.1f}" y="{y + 13}">{number}</text>',
        ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-family="sans-serif" font-size="12"><title>{title}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def update_page(folder: Path, page: Path = README) -> None:
    """Write the results in `folder` into `page`; SystemExit if it has no markers for one."""
    text = page.read_text()
    for file in sorted(folder.glob("*.json")):
        result = BenchmarkResult.model_validate_json(file.read_text())
        start, stop = f"<!-- {result.program} -->", f"<!-- /{result.program} -->"
        if start not in text or stop not in text:
            raise SystemExit(f"{page.name} has no {start} ... {stop} for {file.name}")
        charts = write_charts(result, page.parent / "charts")
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(stop)
        text = before + "\n\n".join([start, *sections(result, charts), stop]) + after
    page.write_text(text)


def write_charts(result: BenchmarkResult, folder: Path) -> list[Path]:
    """Write the SVG files of `result`; return their paths."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{result.program}-{n}.svg" for n in range(1, len(result.charts) + 1)]
    for path, chart in zip(paths, result.charts, strict=True):
        path.write_text(bar_chart(chart))
    return paths


def sections(result: BenchmarkResult, charts: list[Path]) -> Iterator[str]:
    """Yield the conditions, tables and images of `result` as Markdown."""
    yield conditions_text(result.conditions)
    for table in result.tables:
        yield f"**{table.title}**\n\n{markdown_table(table)}"
    for path, chart in zip(charts, result.charts, strict=True):
        yield f"![{chart.title}]({path.parent.name}/{path.name})"


def markdown_table(table: ResultTable) -> str:
    """Return `table` as Markdown; every column but the first is aligned right."""
    rows = [table.columns, ("---", *("--:" for _ in table.columns[1:])), *table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def conditions_text(conditions: RunConditions) -> str:
    """Return the conditions in a line."""
    versions = ", ".join(f"{name} {number}" for name, number in conditions.versions.items())
    return (
        f"{conditions.started:%Y-%m-%d %H:%M} UTC, {conditions.seconds:.0f} s, commit "
        f"{conditions.commit}; {conditions.machine}; load {conditions.load_at_start:.1f} at the "
        f"start, {conditions.load_at_end:.1f} at the end; {versions}."
    )


def main() -> None:
    """Update the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the result documents")
    update_page(parser.parse_args().folder)


if __name__ == "__main__":
    main()
