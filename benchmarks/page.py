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
# The colours of a reader's light or dark scheme, also where a picture is an <img>.
SVG_STYLE = """<style>
.page { fill: #ffffff } text, .ink { fill: #24292f } .line { stroke: #57606a; fill: none }
.a { fill: #3367a6; stroke: #3367a6 } .b { fill: #b35900; stroke: #b35900 }
.c { fill: #b3261e; stroke: #b3261e } .curve { fill: none; stroke-width: 2 } .box { fill: #dbe7f5 }
@media (prefers-color-scheme: dark) {
.page { fill: #1e2129 } text, .ink { fill: #e6edf3 } .line { stroke: #9aa4af }
.a { fill: #79b0f0; stroke: #79b0f0 } .b { fill: #f0a35e; stroke: #f0a35e }
.c { fill: #ff8a80; stroke: #ff8a80 } .curve { fill: none } .box { fill: #2c405c }
}
</style>"""


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a picture of `width` x `height` pixels with an accessible title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>\n{SVG_STYLE}\n'
        f'<rect class="page" width="{width}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def bar_chart(chart: BarChart) -> str:
    """Return `chart` as SVG: a horizontal bar from zero with its value for each label."""
    largest = max(chart.values.values(), default=0.0) or 1.0
    height = _TOP + _ROW_HEIGHT * len(chart.values) + 8
    title = f"{chart.title} ({chart.unit})"
    parts = [f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>']
    for index, (label, value) in enumerate(chart.values.items()):
        y = _TOP + _ROW_HEIGHT * index
        length = value / largest * (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH)
        number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        parts += [
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="16" class="a"/>',
            f'<text x="{_LABEL_WIDTH + length + 6:.1f}" y="{y + 13}">{number}</text>',
        ]
    return svg(_WIDTH, height, title, parts)


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
