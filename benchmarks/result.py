"""The result document of a benchmark: tables, charts, and the conditions they were measured in."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import rich.table
from pydantic import BaseModel
from rich.console import Console

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("onnxruntime", "bentoml", "uvicorn", "numpy", "torch", "pyarrow", "confluent-kafka")


class ResultTable(BaseModel):
    """A table; the first column holds labels, the others numbers as text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = []

    def add(self, *cells: object) -> None:
        """Add a row: floats with three significant digits, counts with separators."""
        self.rows.append(tuple(_text(cell) for cell in cells))


class BarChart(BaseModel):
    """Values by label, drawn as horizontal bars from zero."""

    title: str
    unit: str
    values: dict[str, float] = {}


class RunConditions(BaseModel):
    """Where and when a benchmark ran."""

    started: datetime
    seconds: float = 0.0
    commit: str
    machine: str
    versions: dict[str, str]
    load_at_start: float
    load_at_end: float = 0.0


class BenchmarkResult(BaseModel):
    """One run of one program."""

    program: str
    conditions: RunConditions
    tables: list[ResultTable] = []
    charts: list[BarChart] = []

    def table(self, title: str, *columns: str) -> ResultTable:
        """Add an empty table."""
        self.tables.append(ResultTable(title=title, columns=columns))
        return self.tables[-1]

    def chart(self, title: str, unit: str, values: dict[str, float]) -> None:
        """Add a bar chart."""
        self.charts.append(BarChart(title=title, unit=unit, values=values))


def argument_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that every program has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}", description=description
    )
    parser.add_argument("--json", type=Path, help="write the result document to this file")
    return parser


@contextmanager
def measuring(program: str, path: Path | None) -> Iterator[BenchmarkResult]:
    """Yield an empty result; print its tables at the end and write it to `path`, if given."""
    started = datetime.now(UTC)
    result = BenchmarkResult(
        program=program,
        conditions=RunConditions(
            started=started,
            commit=_commit(),
            machine=_machine(),
            versions=_versions(),
            load_at_start=os.getloadavg()[0],
        ),
    )
    yield result
    result.conditions.seconds = (datetime.now(UTC) - started).total_seconds()
    result.conditions.load_at_end = os.getloadavg()[0]
    print_tables(result.tables)
    if path is not None:
        path.write_text(result.model_dump_json(indent=1))


def print_tables(tables: Sequence[ResultTable]) -> None:
    """Print the tables to the terminal."""
    console = Console(width=200)
    for each in tables:
        shown = rich.table.Table(title=each.title, box=None, padding=(0, 2, 0, 0))
        for index, column in enumerate(each.columns):
            shown.add_column(column, justify="right" if index else "left", no_wrap=not index)
        for row in each.rows:
            shown.add_row(*row)
        console.print(shown)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    changed = " with local changes" if git("status", "--porcelain", "-uno") else ""
    return git("rev-parse", "--short=12", "HEAD") + changed


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gibibytes = psutil.virtual_memory().total / 2**30
    name = models[0] if models else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {gibibytes:.0f} GiB"


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # an optional package
    return found
