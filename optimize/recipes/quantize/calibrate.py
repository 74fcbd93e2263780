"""Running the float graph over the calibration rows to learn the range of every activation.

Rows go through 8 at a time and only minima, maxima and counts stay, so memory is bounded
by the activations of one batch. The counts have bins fixed by the minima and maxima of a
first pass: the result does not depend on how the rows are divided. A graph whose rows
influence each other is fed 8 at a time too; that is a valid input of it like any other.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.entries import Key
from bundle.files import sha256_file
from optimize.cache import versions
from optimize.data import Rows
from optimize.recipes.base import DATA_NAME, Calibrator, Workbench
from optimize.recipes.quantize.observe import Ranges, observer, seen_counts, seen_ranges
from optimize.recipes.quantize.thresholds import ValueRange, entropy_range, percentile_range
from services.runtime.scorer import split_rows

VERSION = 1
BATCH = 8

_FILE = "observed.npz"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of the activations `tensors` of the graph `source`, kept in the store.

    A first pass finds minima and maxima; only calibrators that need them cost a second
    pass, for histograms.
    """

    source: Path
    tensors: tuple[str, ...]
    bench: Workbench

    def ranges(self, calibrator: Calibrator) -> Ranges:
        """Every activation's range; those that are not fp32 or not finite are left out."""
        seen = self._seen()
        if calibrator is Calibrator.MINMAX:
            return seen
        counts = self._counts(seen)
        choose = entropy_range if calibrator is Calibrator.ENTROPY else percentile_range
        return {name: choose(bounds, counts[name]) for name, bounds in seen.items()}

    def _seen(self) -> dict[str, ValueRange]:
        def fill(directory: Path) -> None:
            found = seen_ranges(self._values("calibration ranges", directory))
            bounds = [[bounds.low, bounds.high] for bounds in found.values()]
            _save(directory, found, np.array(bounds, np.float64).reshape(-1, 2))

        stored = _load(self.bench.store(self._key("ranges"), fill))
        return {name: ValueRange(float(low), float(high)) for name, (low, high) in stored.items()}

    def _counts(self, seen: Ranges) -> dict[str, np.ndarray]:
        def fill(directory: Path) -> None:
            found = seen_counts(self._values("calibration histograms", directory), seen)
            _save(directory, found, np.array(list(found.values())))

        return _load(self.bench.store(self._key("histograms"), fill))

    def _values(self, phase: str, directory: Path) -> Iterator[dict[str, np.ndarray]]:
        rows = self.bench.calibration
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            observe = observer(self.source, self.tensors, Path(scratch))
            for number, batch in enumerate(split_rows(rows.inputs, BATCH), 1):
                yield observe(batch)
                self.bench.step(phase, min(number * BATCH, rows.count), rows.count)

    def _key(self, kind: str) -> Key:
        return {
            "kind": f"calibration {kind}",
            "version": VERSION,
            "graph": graph_digest(self.source),
            "rows": rows_digest(self.bench.calibration),
            "tensors": hashlib.sha256("\0".join(self.tensors).encode()).hexdigest(),
            "libraries": versions("numpy", "onnxruntime", "onnxruntime-gpu"),
        }


def graph_digest(source: Path) -> str:
    """Names the graph with its weights, wherever they are stored."""
    paths = (source, source.parent / DATA_NAME)
    return " ".join(sha256_file(path) for path in paths if path.is_file())


def rows_digest(rows: Rows) -> str:
    """The hex sha256 of the inputs of `rows`."""
    digest = hashlib.sha256()
    for name, array in sorted(rows.inputs.items()):
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        digest.update(f"{name} {array.dtype} {array.shape} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _save(directory: Path, names: Mapping[str, object], values: np.ndarray) -> None:
    np.savez(directory / _FILE, names=np.array(list(names), dtype=np.str_), values=values)


def _load(directory: Path) -> dict[str, np.ndarray]:
    with np.load(directory / _FILE) as file:
        return dict(zip(file["names"].tolist(), file["values"], strict=True))
