"""Probe rows: kinds of values that the evaluation rows may lack, column by column. Pure.

A proof on given rows says nothing of what is missing among them: a gap, an unseen category, an
empty text, a number beyond float32. Each probe puts one such value into one column of given rows.
Where the graph then answers unlike its source, or the source raises, that kind of value is excluded
for that column by the manifest's input constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.proofs.outlier_rows import distinct

# Given rows that each probe's value is put into.
BASE_ROWS = 3

FLOAT32_MAX = float(np.finfo(np.float32).max)
UNSEEN_TEXT = "no category of this name"
_LONG_TEXT = 5000
# Between two values, and not in their middle, where trees have their thresholds.
_NO_MIDDLE = 0.3819
# Columns of a matrix [rows, features] that are probed at most: those of a wider one are alike.
MAX_FEATURES = 64

# Sizes of numbers in descending order. What a model makes of a finite number may be infinite.
_SIZES = (FLOAT32_MAX, 1e30, 1e24, 1e18, 1e15, 1e12, 1e9, 1e6, 1e4)
# Below the largest of the type; float64 does not hold the first one.
_WHOLE_SIZES = (2**53 + 1, 10**12, 10**9, 10**6, 10**4)
_BEYOND = (-FLOAT32_MAX, FLOAT32_MAX)
# Splits of a column that are probed at most.
_MAX_SPLITS = 4

# Characters whose lower case, or role between words, differs between libraries.
ODD_CHARACTERS = (
    "\u0130\u03a3\u212a\u212b\u1e9e\u017f\u00df\u01c5"  # letters with another or no lower case
    "\u00a0\u2028\u200b\u00ad\u3000\u0301\t\n\r\x0b"  # spaces, marks and what looks like one
    "_'\u2019-.@#\u00b2\u00b7\u0660\u65e5\U0001f600"  # within words or between them
)
# What stands for the ASCII letters that these characters are or become.
_LETTERS = {
    "\u0130": "i",
    "\u03a3": "s",
    "\u212a": "k",
    "\u212b": "a",
    "\u1e9e": "s",
    "\u017f": "s",
    "\u00df": "s",
    "\u01c5": "d",
}


class ProbeKind(StrEnum):
    """A kind of value, in the words of the report."""

    GAP = "a missing value"
    ZERO = "the value 0"
    LARGE = "a number far beyond the data's"
    SIZE = "a number beyond the data's"
    NEGATIVE = "a negative number"
    EXTREME = "the smallest and largest values in the data"
    UNSEEN = "a value that is not among the data's"
    LONG = "a long text"
    CHARACTER = "a text with an odd character"
    CATEGORY = "a known category"
    SPLIT = "a number next to a split of a tree"


# Kinds that limits of a column exclude.
_OF_SIZE = (ProbeKind.LARGE, ProbeKind.SIZE, ProbeKind.NEGATIVE)


@dataclass(frozen=True, slots=True)
class Probe:
    """`value` in all values of each row of the input `column`, or in the one at index `feature`.

    `target` is what a constraint names, if it is not the input: a column of its matrix, as in
    `x[3]`. `limits` are what stays of all numbers if this one is excluded for its size.
    """

    column: str
    kind: ProbeKind
    value: Any
    feature: int | None = None
    target: str = ""
    character: str = ""
    limits: tuple[float, float] = _BEYOND

    @property
    def name(self) -> str:
        """What a constraint names."""
        return self.target or self.column

    @property
    def is_finite(self) -> bool:
        """Whether the value is a number, and not an infinity or NaN."""
        return not isinstance(self.value, float | np.floating) or bool(np.isfinite(self.value))

    def rows(self, base: Tensors) -> dict[str, np.ndarray]:
        """Return the rows of `base` with the probe's value in its place."""
        changed = {name: array.copy() for name, array in base.items()}
        array = changed[self.column]
        for row, values in enumerate(array.reshape(len(array), -1)):
            value = self.value[row] if isinstance(self.value, tuple) else self.value
            if self.feature is None:
                values[:] = value
            else:
                values[self.feature] = value
        return changed


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A probe that the graph does not answer as its source, and why.

    `by_source`: the source itself has no answer.
    """

    probe: Probe
    reason: str
    by_source: bool = False


def base_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Return the given rows that probes are put into."""
    return dict(rows.take(distinct(rows)[:BASE_ROWS]).inputs)


def make_probes(
    specs: Sequence[TensorSpec],
    base: Tensors,
    seen: Sequence[Tensors],
    *,
    table: bool,
    max_features: int = MAX_FEATURES,
) -> list[Probe]:
    """Return the probes of all inputs; `seen` are all given rows, `base` some of them.

    Columns are inputs of one value per row and, of a `table` (an estimator), the features of its
    matrix. If it has more than `max_features`, some are probed, and all are restricted alike.
    Integers are taken for categories only in a table: elsewhere they are positions. Of any other
    tensor the first and the last value are probed.
    """
    found: list[Probe] = []
    for spec in specs:
        arrays = [each[spec.name].reshape(len(each[spec.name]), -1) for each in seen]
        given = base[spec.name].reshape(len(base[spec.name]), -1)
        if spec.shape in ((DYNAMIC,), (DYNAMIC, 1)):
            values = np.concatenate([array[:, 0] for array in arrays])
            found += _column(spec, values, given[:, 0], values, table=table)
        elif table and len(spec.shape) == 2:
            width = given.shape[1]
            for feature in np.unique(np.linspace(0, width - 1, max_features).astype(int)).tolist():
                values = np.concatenate([array[:, feature] for array in arrays])
                alone = width <= max_features
                target = f"{spec.name}[{feature}]" if alone else ""
                limited = values if alone else np.concatenate(arrays).ravel()
                found += (
                    replace(probe, feature=feature, target=target)
                    for probe in _column(spec, values, given[:, feature], limited, table=table)
                )
        elif given.size:
            found += _tensor(spec, given, arrays)
    return found


def split_probes(
    specs: Sequence[TensorSpec], splits: Mapping[tuple[str, int | None], np.ndarray]
) -> list[Probe]:
    """Return a probe at some `splits` of float columns, and at the numbers next to each.

    Next in the type that the trees compare, or in the column's if that holds fewer numbers.
    """
    types = {
        spec.name: np.dtype(spec.dtype.numpy_name)
        for spec in specs
        if spec.dtype in (Datatype.FP32, Datatype.FP64)
    }
    found = []
    for (name, feature), compared in splits.items():
        thresholds = compared[np.isfinite(compared)]  # only gaps are beyond a split at infinity
        if name not in types or not thresholds.size:
            continue
        dtype = min(types[name], thresholds.dtype, key=lambda each: each.itemsize)
        picked = np.linspace(0, len(thresholds) - 1, _MAX_SPLITS).astype(int)
        at = thresholds[np.unique(picked)].astype(dtype)
        beside = [np.nextafter(at, dtype.type(side)) for side in (-np.inf, np.inf)]
        values = np.unique(np.concatenate([at, *beside]))
        target = "" if feature is None else f"{name}[{feature}]"
        found += [Probe(name, ProbeKind.SPLIT, value, feature, target) for value in values]
    return found


def category_probes(
    spec: TensorSpec, seen: Iterable[Any], of_graph: Iterable[Any], feature: int | None = None
) -> list[Probe]:
    """Return a probe for each value that may be a category: of the data, or a constant."""
    kind: type = bytes if spec.dtype is Datatype.BYTES else int if spec.dtype.is_integer else float
    values = {kind(value): None for value in (*seen, *of_graph) if _fits(value, kind)}
    return [Probe(spec.name, ProbeKind.CATEGORY, value, feature) for value in values]


def _fits(value: Any, kind: type) -> bool:
    if kind is bytes:
        return isinstance(value, bytes) and value != b""
    if isinstance(value, bytes) or not np.isfinite(value):
        return False
    return kind is float or int(value) == value


def _column(
    spec: TensorSpec, values: np.ndarray, base: np.ndarray, limited: np.ndarray, *, table: bool
) -> Iterator[Probe]:
    """Yield the probes of a column; `limited` are the given values of all that share its limits."""
    found: Iterator[tuple[ProbeKind, Any]] = iter(())
    if spec.dtype is Datatype.BYTES:
        texts = [value.decode(errors="replace") for value in base]
        yield from _characters(spec.name, texts)
        found = _texts(texts)
    elif spec.dtype.is_integer:
        found = _integers(values, table=table)
    elif spec.dtype in (Datatype.FP32, Datatype.FP64):
        found = _floats(values, table=table)
    for kind, value in found:
        yield Probe(spec.name, kind, value)
    if spec.dtype in (Datatype.FP32, Datatype.FP64):
        yield from _large(spec, limited)
    elif spec.dtype.is_integer:
        yield from _whole(spec, limited, table=table)


def _tensor(spec: TensorSpec, base: np.ndarray, seen: Sequence[np.ndarray]) -> Iterator[Probe]:
    """Yield the probes of rows [rows, values] of any tensor that is no column of a table."""
    if spec.dtype in (Datatype.FP32, Datatype.FP64):
        largest = max(_largest(array) for array in seen)
        sizes = dict.fromkeys((float(np.finfo(spec.dtype.numpy_name).max), *_SIZES))
        if any(np.isinf(array).any() for array in seen):
            # Of the largest numbers even a sum is infinite, and limits would exclude the data.
            sizes = dict.fromkeys(_SIZES[1:])
        proved = max(*sizes, largest)
        for feature in (0, -1):
            yield Probe(spec.name, ProbeKind.GAP, np.nan, feature)
            yield Probe(spec.name, ProbeKind.LARGE, np.inf, feature, limits=(-proved, proved))
        unit = [row / (_largest(row) or 1.0) for row in np.where(np.isfinite(base), base, 0)]
        for kind, size, limit in _sizes([*sizes], largest):
            scaled = tuple(row * row.dtype.type(size) for row in unit)
            yield Probe(spec.name, kind, scaled, limits=(-limit, limit))
    elif spec.dtype.is_integer:
        (type_min, type_max), lowest = _bounds(spec), min(array.min(initial=0) for array in seen)
        for feature in (0, -1) if type_min < 0 <= lowest else ():
            yield Probe(spec.name, ProbeKind.NEGATIVE, -1, feature, limits=(0, type_max))


def _large(spec: TensorSpec, values: np.ndarray) -> Iterator[Probe]:
    """Yield numbers beyond the column's, on both sides, with what stays if they are excluded."""
    for size in (np.inf, *((1e300,) if spec.dtype is Datatype.FP64 else ())):
        yield from (Probe(spec.name, ProbeKind.LARGE, value) for value in (size, -size))
    finite = values[np.isfinite(values)]
    for kind, size, limit in _sizes(_SIZES, max(finite.max(initial=0), 0.0)):
        yield Probe(spec.name, kind, size, limits=(-FLOAT32_MAX, limit))
    for kind, size, limit in _sizes(_SIZES, max(-finite.min(initial=0), 0.0)):
        yield Probe(spec.name, kind, -size, limits=(-limit, FLOAT32_MAX))


def _whole(spec: TensorSpec, values: np.ndarray, *, table: bool) -> Iterator[Probe]:
    """Yield a negative number and, of a `table`, numbers beyond the column's, as `_large` does."""
    lowest, highest = int(values.min()), int(values.max())
    type_min, type_max = _bounds(spec)
    if type_min < 0 <= lowest:
        yield Probe(spec.name, ProbeKind.NEGATIVE, -1, limits=(0, type_max))
    if not table:
        return
    for kind, size, limit in _sizes(_up_to(type_max), max(highest, 0)):
        yield Probe(spec.name, kind, size, limits=(type_min, limit))
    for kind, size, limit in _sizes(_up_to(-type_min), max(-lowest, 0)):
        yield Probe(spec.name, kind, -size, limits=(-limit, type_max))


def _up_to(largest: int) -> list[int]:
    return [largest, *(size for size in _WHOLE_SIZES if size < largest)]


def _bounds(spec: TensorSpec) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    found = np.iinfo(spec.dtype.numpy_name)
    return int(found.min), int(found.max)


def _sizes(sizes: Sequence[float], largest: float) -> Iterator[tuple[ProbeKind, float, float]]:
    """Yield sizes above `largest`, the data's, with the next smaller one that stays."""
    above = [size for size in sizes if size > largest]
    below = [*above[1:], largest]
    for number, (size, limit) in enumerate(zip(above, below, strict=False)):  # none above, none
        yield ProbeKind.SIZE if number else ProbeKind.LARGE, size, limit


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _characters(name: str, texts: Sequence[str]) -> Iterator[Probe]:
    for character in ODD_CHARACTERS:
        for changed in _with(character, texts):
            value = tuple(text.encode() for text in changed)
            yield Probe(name, ProbeKind.CHARACTER, value, character=character)


def _texts(texts: Sequence[str]) -> Iterator[tuple[ProbeKind, Any]]:
    longest = max(texts, key=len, default="") or "text"
    yield ProbeKind.GAP, b""
    yield ProbeKind.UNSEEN, UNSEEN_TEXT.encode()
    yield ProbeKind.LONG, f"{longest} ".encode() * (_LONG_TEXT // len(longest))


def _integers(values: np.ndarray, *, table: bool) -> Iterator[tuple[ProbeKind, Any]]:
    yield ProbeKind.ZERO, 0
    yield ProbeKind.EXTREME, values.min()
    yield ProbeKind.EXTREME, values.max()
    if table and values.max() < np.iinfo(values.dtype).max:
        yield ProbeKind.UNSEEN, values.max() + 1


def _floats(values: np.ndarray, *, table: bool) -> Iterator[tuple[ProbeKind, Any]]:
    finite = values[np.isfinite(values)]
    yield ProbeKind.GAP, np.nan
    yield ProbeKind.ZERO, 0.0
    for value in (finite.min(), finite.max()) if len(finite) else ():
        yield ProbeKind.EXTREME, value
    if table and len(finite):
        yield ProbeKind.UNSEEN, _between(finite)


def _between(values: np.ndarray) -> Any:
    """Return a value inside of the data's range that is not among them, if there is one."""
    found = np.unique(values)
    if len(found) < 2:
        return found[0] + 1
    low, high = found[len(found) // 2 - 1 : len(found) // 2 + 1]
    return low + _NO_MIDDLE * (high - low)


def _with(character: str, texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts with the character between words, within them and for a letter."""
    yield [text.replace(" ", character) if " " in text else text + character for text in texts]
    yield [text[: len(text) // 2] + character + text[len(text) // 2 :] for text in texts]
    yield [f"{character}{text}" for text in texts]
    yield [f"{text}{character}" for text in texts]
    if letter := _LETTERS.get(character):
        yield [text.replace(letter, character) for text in texts]


@dataclass(frozen=True, slots=True)
class Excluded:
    """What the exclusions of a model become: fields of `InputConstraints`."""

    present: tuple[str, ...]
    nonzero: tuple[str, ...]
    limits: Mapping[str, tuple[float, float]]
    categorical: tuple[str, ...]
    forbidden_characters: Mapping[str, str]
    inexpressible: tuple[Exclusion, ...]


def combine(exclusions: Sequence[Exclusion]) -> Excluded:
    """Return the constraints that exclude the kinds of values of `exclusions`.

    A column that rejects unseen values takes known categories only, which includes 0, negative
    numbers, characters and lengths. Some kinds cannot be excluded: the data's own values.
    """
    columns: dict[ProbeKind, dict[str, Exclusion]] = {kind: {} for kind in ProbeKind}
    for each in exclusions:
        columns[each.probe.kind].setdefault(each.probe.name, each)
    categorical = columns[ProbeKind.UNSEEN]
    characters: dict[str, str] = {}
    limits: dict[str, tuple[float, float]] = {}
    for each in exclusions:
        name, character = each.probe.name, each.probe.character
        if character and name not in categorical and character not in characters.get(name, ""):
            characters[name] = characters.get(name, "") + character
        if each.probe.kind in _OF_SIZE and name not in categorical:
            low, high = each.probe.limits
            lowest, highest = limits.get(name, each.probe.limits)
            limits[name] = (max(low, lowest), min(high, highest))

    def others(kind: ProbeKind) -> tuple[str, ...]:
        return tuple(sorted(columns[kind].keys() - categorical.keys()))

    inexpressible = [
        each
        for kind in (ProbeKind.EXTREME, ProbeKind.LONG, ProbeKind.SPLIT)
        for name, each in columns[kind].items()
        if name not in categorical
    ]
    return Excluded(
        present=tuple(sorted(columns[ProbeKind.GAP])),
        nonzero=others(ProbeKind.ZERO),
        limits={name: limits[name] for name in sorted(limits)},
        categorical=tuple(sorted(categorical)),
        forbidden_characters={name: characters[name] for name in sorted(characters)},
        inexpressible=tuple(inexpressible),
    )
