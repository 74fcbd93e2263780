"""Probe rows: kinds of values that the evaluation rows may lack, column by column. Pure.

A proof on given rows says nothing of what is missing among them: a gap, an unseen category, an
empty text, a number beyond float32. Each probe puts one such value into one column of given rows.
Where the graph then answers unlike its source, or the source raises, that kind of value is excluded
for that column by the manifest's input constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from optimize.data import Rows, Tensors
from optimize.proofs.outlier_rows import distinct

# Given rows that each probe's value is put into.
BASE_ROWS = 3

FLOAT32_MAX = float(np.finfo(np.float32).max)
UNSEEN_TEXT = "no category of this name"
_LONG_TEXT = 5000
# Between two values, and not in their middle, where trees have their thresholds.
_NO_MIDDLE = 0.3819
# Columns of a matrix [rows, features] that are probed at most: they are alike.
_MAX_FEATURES = 32
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
    LARGE = "a number beyond float32"
    NEGATIVE = "a negative number"
    EXTREME = "the smallest and largest values in the data"
    UNSEEN = "a value that is not among the data's"
    LONG = "a long text"
    CHARACTER = "a text with an odd character"
    CATEGORY = "a known category"
    SPLIT = "a number next to a split of a tree"


@dataclass(frozen=True, slots=True)
class Probe:
    """`value` in the column `feature` (of a matrix, else None) of the input `column`."""

    column: str
    kind: ProbeKind
    value: Any
    feature: int | None = None
    character: str = ""

    def rows(self, base: Tensors) -> dict[str, np.ndarray]:
        """Return the rows of `base` with the probe's value in its column."""
        changed = {name: array.copy() for name, array in base.items()}
        array = changed[self.column]
        for row in range(len(array)):
            value = self.value[row] if isinstance(self.value, tuple) else self.value
            if self.feature is None:
                array[row : row + 1].reshape(-1)[:] = value
            else:
                array[row, self.feature] = value
        return changed


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A probe that the graph does not answer as its source, and why."""

    probe: Probe
    reason: str


def base_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Return the given rows that probes are put into."""
    return dict(rows.take(distinct(rows)[:BASE_ROWS]).inputs)


def make_probes(
    specs: Sequence[TensorSpec], base: Tensors, seen: Sequence[Tensors], *, table: bool
) -> list[Probe]:
    """Return the probes of all columns; `seen` are all given rows, `base` some of them.

    Columns are inputs of one value per row and, of a `table` (an estimator), the features of its
    matrix. Integers are taken for categories only in a table: elsewhere they are positions.
    """
    found: list[Probe] = []
    for spec in specs:
        if spec.shape in ((DYNAMIC,), (DYNAMIC, 1)):
            values = np.concatenate([each[spec.name].reshape(-1) for each in seen])
            found += _column(spec, values, base[spec.name].reshape(-1), None, table=table)
        elif table and len(spec.shape) == 2 and base[spec.name].dtype.kind == "f":
            features = base[spec.name].shape[1]
            for feature in np.unique(np.linspace(0, features - 1, _MAX_FEATURES).astype(int)):
                values = np.concatenate([each[spec.name][:, feature] for each in seen])
                found += _column(spec, values, values[:0], int(feature), table=table)
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
    for (name, feature), thresholds in splits.items():
        if name not in types:
            continue
        dtype = min(types[name], thresholds.dtype, key=lambda each: each.itemsize)
        picked = np.linspace(0, len(thresholds) - 1, _MAX_SPLITS).astype(int)
        at = thresholds[np.unique(picked)].astype(dtype)
        beside = [np.nextafter(at, dtype.type(side)) for side in (-np.inf, np.inf)]
        values = np.unique(np.concatenate([at, *beside]))
        found += [Probe(name, ProbeKind.SPLIT, value, feature) for value in values]
    return found


def category_probes(spec: TensorSpec, seen: Iterable[Any], of_graph: Iterable[Any]) -> list[Probe]:
    """Return a probe for each value that may be a category: of the data, or a constant."""
    kind: type = bytes if spec.dtype is Datatype.BYTES else int if spec.dtype.is_integer else float
    values = {kind(value): None for value in (*seen, *of_graph) if _fits(value, kind)}
    return [Probe(spec.name, ProbeKind.CATEGORY, value) for value in values]


def _fits(value: Any, kind: type) -> bool:
    if kind is bytes:
        return isinstance(value, bytes) and value != b""
    if isinstance(value, bytes) or not np.isfinite(value):
        return False
    return kind is float or int(value) == value


def _column(
    spec: TensorSpec, values: np.ndarray, base: np.ndarray, feature: int | None, *, table: bool
) -> Iterator[Probe]:
    found: Iterator[tuple[ProbeKind, Any]] = iter(())
    if spec.dtype is Datatype.BYTES:
        texts = [value.decode(errors="replace") for value in base]
        yield from _characters(spec.name, texts)
        found = _texts(texts)
    elif spec.dtype.is_integer:
        found = _integers(spec.dtype, values, table=table)
    elif spec.dtype in (Datatype.FP32, Datatype.FP64):
        found = _floats(spec.dtype, values, table=table)
    for kind, value in found:
        yield Probe(spec.name, kind, value, feature)


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


def _integers(
    dtype: Datatype, values: np.ndarray, *, table: bool
) -> Iterator[tuple[ProbeKind, Any]]:
    yield ProbeKind.ZERO, 0
    yield ProbeKind.EXTREME, values.min()
    yield ProbeKind.EXTREME, values.max()
    if not dtype.value.startswith("U") and values.min() >= 0:
        yield ProbeKind.NEGATIVE, -1
    if table and values.max() < np.iinfo(values.dtype).max:
        yield ProbeKind.UNSEEN, values.max() + 1


def _floats(dtype: Datatype, values: np.ndarray, *, table: bool) -> Iterator[tuple[ProbeKind, Any]]:
    finite = values[np.isfinite(values)]
    yield ProbeKind.GAP, np.nan
    yield ProbeKind.ZERO, 0.0
    for value in (finite.min(), finite.max()) if len(finite) else ():
        yield ProbeKind.EXTREME, value
    for large in (np.inf, -np.inf, *((1e300, -1e300) if dtype is Datatype.FP64 else ())):
        yield ProbeKind.LARGE, large
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
    not_negative: tuple[str, ...]
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
        columns[each.probe.kind].setdefault(each.probe.column, each)
    categorical = columns[ProbeKind.UNSEEN]
    characters: dict[str, str] = {}
    for each in exclusions:
        name, character = each.probe.column, each.probe.character
        if character and name not in categorical and character not in characters.get(name, ""):
            characters[name] = characters.get(name, "") + character

    def others(kind: ProbeKind) -> tuple[str, ...]:
        return tuple(sorted(columns[kind].keys() - categorical.keys()))

    inexpressible = [
        each
        for kind in (ProbeKind.EXTREME, ProbeKind.LONG, ProbeKind.SPLIT)
        for name, each in columns[kind].items()
        if name not in categorical
    ]
    inexpressible += [each for each in categorical.values() if each.probe.feature is not None]
    return Excluded(
        present=tuple(sorted(columns[ProbeKind.GAP])),
        nonzero=others(ProbeKind.ZERO),
        limits=dict.fromkeys(sorted(columns[ProbeKind.LARGE]), (-FLOAT32_MAX, FLOAT32_MAX)),
        not_negative=others(ProbeKind.NEGATIVE),
        categorical=tuple(sorted(categorical)),
        forbidden_characters={name: characters[name] for name in sorted(characters)},
        inexpressible=tuple(inexpressible),
    )
