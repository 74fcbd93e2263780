"""Run probe rows through a graph and its source, and exclude what differs; see `probes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlctl.bundle.manifest import Category, InputConstraints, split_column
from mlctl.bundle.tensors import Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.parity import finite
from mlctl.optimize.proofs.differences import describe_difference, differing_rows
from mlctl.optimize.proofs.probes import (
    Exclusion,
    Probe,
    ProbeKind,
    base_rows,
    category_probes,
    combine,
    make_probes,
    split_probes,
)
from mlctl.optimize.proofs.reference import Reference
from mlctl.optimize.proofs.splits import near_splits, split_values
from mlctl.optimize.recipes.graphs import graphs
from mlctl.services.model.input_checks import ValueChecks
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.scorer import join_rows
from mlctl.services.model.session import Session

_MAX_ROWS = 2000
MAX_CATEGORIES = 5000
# Columns in a row that reject a kind of value, after which the others are not asked.
_ALIKE = 64
_OF_COLUMNS = (ProbeKind.GAP, ProbeKind.LARGE)
_KINDS = list(ProbeKind)
# Columns of a matrix whose categories are asked for one by one.
MAX_FEATURES_ALONE = 4096
# A text column with more distinct values in a row is free text, and no category.
_FREE_TEXT = 0.5

Run = Callable[[Tensors], dict[str, np.ndarray]]


class ProbeResult(BaseModel):
    """The constraints that probes of a model showed to be needed, and the reasons in words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    constraints: InputConstraints = InputConstraints()
    reasons: tuple[str, ...] = ()

    def added_to(self, found: InputConstraints) -> InputConstraints:
        """Return the constraints `found` with those of the probes."""
        own = self.constraints
        ranges = dict(found.ranges)
        for name, (low, high) in own.ranges.items():
            lowest, highest = ranges.get(name, (low, high))
            ranges[name] = (max(low, lowest), min(high, highest))
        return found.model_copy(
            update={
                "ranges": ranges,
                "nullable": tuple(name for name in found.nullable if name not in own.present),
                "optional": tuple(name for name in found.optional if name not in own.present),
                "present": own.present,
                "nonzero": own.nonzero,
                "limits": own.limits,
                "categories": own.categories,
                "forbidden_characters": own.forbidden_characters,
            }
        )


class Prober:
    """A graph and its source, asked about the same probes.

    With `batched` rows of several probes run together. A failure is then bisected.
    """

    def __init__(
        self, reference: Reference, session: Session, graph: Path, base: Tensors, *, batched: bool
    ) -> None:
        self._reference, self._session, self._graph = reference, session, graph
        self._base, self._batched = base, batched

    def exclusions(self, probes: Sequence[Probe]) -> list[Exclusion]:
        """Return the probes that the graph does not answer as its source, with the reasons."""
        found, asked = [], []
        wanted = self._answers(self._reference.run, probes)
        for probe, want in zip(probes, wanted, strict=True):
            if isinstance(want, str):
                reason = f"the source model rejects it: {want}"
                found.append(Exclusion(probe, reason, by_source=True))
            elif probe.is_finite and not finite(want):
                reason = "the source model answers with NaN or infinity"
                found.append(Exclusion(probe, reason, by_source=True))
            else:
                asked.append((probe, want))
        answers = self._answers(self._session.run, [probe for probe, _ in asked])
        for (probe, want), have in zip(asked, answers, strict=True):
            if reason := self._difference(probe, want, have):
                found.append(Exclusion(probe, reason))
        return found

    def _difference(self, probe: Probe, want: Tensors, have: Tensors | str) -> str:
        if isinstance(have, str):
            return f"the graph does not run: {have}"
        for output, differs in differing_rows(want, have).items():
            if differs.any():
                near = near_splits(self._graph, probe.rows(self._base))
                rows = np.flatnonzero(differs if near is None else differs & ~near)
                if rows.size:
                    return f"{output}: {describe_difference(want, have, output, int(rows[0]))}"
        return ""

    def _answers(self, run: Run, probes: Sequence[Probe]) -> list[dict[str, np.ndarray] | str]:
        """Return the answers to each probe, or why there are none.

        Probes that fail stand together, since they are in the order of their kinds: after one that
        fails the next runs alone, and after one that runs twice as many run together. Where the
        model rejects a missing or an infinite value in many columns in a row, it does in the others
        of that kind: each column of a wide table alone would take hours.
        """
        rows = len(next(iter(self._base.values())))
        most = max(1, _MAX_ROWS // rows) if self._batched else 1
        found: list[dict[str, np.ndarray] | str] = []
        count, failed = most, 0
        while len(found) < len(probes):
            part = probes[len(found) : len(found) + count]
            before = probes[len(found) - 1]
            alike = _kind_and_size(before) == _kind_and_size(part[0])
            if failed >= _ALIKE and alike and part[0].kind in _OF_COLUMNS:
                found.append(found[-1])
                continue
            try:
                outputs = run(join_rows([probe.rows(self._base) for probe in part]))
            except (MlctlError, RunError) as error:
                if len(part) == 1:
                    found.append(first_line(error))
                    failed += 1
                count = 1
            else:
                found += [
                    {name: array[at : at + rows] for name, array in outputs.items()}
                    for at in range(0, len(part) * rows, rows)
                ]
                count, failed = min(most, 2 * count), 0
        return found


def probe_model(
    reference: Reference,
    session: Session,
    graph: Path,
    signature: Signature,
    data: tuple[Rows, Rows],
    *,
    table: bool,
    independent: bool,
) -> ProbeResult:
    """Ask for values that the held-out and the calibration rows of `data` may lack.

    EXPORT_FAILED if the graph differs for a kind of value that no constraint excludes.
    """
    held_out, calibration = data
    seen = [held_out.inputs, calibration.inputs]
    base = base_rows(held_out)
    probes = make_probes(signature.inputs, base, seen, table=table)
    if table:
        probes += split_probes(signature.inputs, split_values(graph, held_out.inputs))
    prober = Prober(reference, session, graph, base, batched=independent)
    found = _first(prober, probes)
    categorical = {each.probe.name for each in found if each.probe.kind is ProbeKind.UNSEEN}
    if wide := {each.probe.column for each in found if _shares_categories(each)}:
        # Each column of a matrix has its own categories.
        alone = [spec for spec in signature.inputs if spec.name in wide]
        probes = [
            probe for probe in probes if probe.column not in wide or probe.kind is ProbeKind.SPLIT
        ]
        probes += make_probes(alone, base, seen, table=table, max_features=MAX_FEATURES_ALONE)
        found = _first(prober, probes)
        categorical = {each.probe.name for each in found if each.probe.kind is ProbeKind.UNSEEN}
    texts = (ProbeKind.LONG, ProbeKind.CHARACTER)
    found += prober.exclusions(
        [probe for probe in probes if probe.kind in texts and probe.name not in categorical]
    )
    excluded = combine(found)
    for each in excluded.inexpressible:
        raise _inexpressible(each)
    categories = {}
    for name in excluded.categorical:
        values = _values_of(name, signature, seen)
        _require_categories(name, values, found)
        categories[name] = _categories(prober, signature, name, values, graph)
    specs = {spec.name: spec for spec in signature.inputs}
    ranges, limits = {}, {}
    for name, (low, high) in excluded.limits.items():
        if specs[split_column(name, specs)[0]].dtype.is_integer:
            ranges[name] = int(low), int(high)
        else:
            limits[name] = low, high
    constraints = InputConstraints(
        ranges=ranges,
        present=excluded.present,
        nonzero=excluded.nonzero,
        limits=limits,
        categories=categories,
        forbidden_characters=dict(excluded.forbidden_characters),
    )
    _require_given_rows(constraints, held_out, found)
    return ProbeResult(constraints=constraints, reasons=tuple(_reasons(found)))


def _first(prober: Prober, probes: Sequence[Probe]) -> list[Exclusion]:
    """Return the exclusions but those of texts, with the size from which numbers are too large."""
    later = (ProbeKind.LONG, ProbeKind.CHARACTER, ProbeKind.SIZE)
    first = [probe for probe in probes if probe.kind not in later]
    found = prober.exclusions(sorted(first, key=_kind_and_size))
    large = {each.probe.name for each in found if each.probe.kind is ProbeKind.LARGE}
    return found + prober.exclusions(
        [probe for probe in probes if probe.kind is ProbeKind.SIZE and probe.name in large]
    )


def _kind_and_size(probe: Probe) -> tuple[int, str]:
    """Return what probes of several columns have in common that fail together."""
    return _KINDS.index(probe.kind), str(probe.value) if probe.kind is ProbeKind.LARGE else ""


def _shares_categories(each: Exclusion) -> bool:
    probe = each.probe
    return probe.kind is ProbeKind.UNSEEN and probe.feature is not None and not probe.target


def _values_of(name: str, signature: Signature, seen: Sequence[Tensors]) -> list[Any]:
    """Return the values that the column `name` of a constraint has in the given rows."""
    column, feature = split_column(name, [spec.name for spec in signature.inputs])
    arrays = [each[column].reshape(len(each[column]), -1) for each in seen]
    index = slice(None) if feature is None else feature
    values: list[Any] = np.concatenate([array[:, index].ravel() for array in arrays]).tolist()
    return values


def _require_categories(name: str, values: Sequence[Any], found: Sequence[Exclusion]) -> None:
    """EXPORT_FAILED for a text that is no category, and whose answer differs if it is new."""
    for each in found:
        probe = each.probe
        free = isinstance(probe.value, bytes) and len(set(values)) > _FREE_TEXT * len(values)
        unseen = probe.kind is ProbeKind.UNSEEN and probe.name == name
        if unseen and free and not each.by_source:
            raise _inexpressible(each)


def _require_given_rows(
    constraints: InputConstraints, rows: Rows, found: Sequence[Exclusion]
) -> None:
    """EXPORT_FAILED if the constraints exclude rows that the graph answers as its source does."""
    try:
        ValueChecks(constraints).check(rows.inputs)
    except MlctlError as error:
        reasons = " ".join(_reasons(found))
        raise MlctlError(
            ErrorCode.EXPORT_FAILED,
            f"the graph is not the model: {error.message}, and rows of the data have it. {reasons}",
            "Replace the step that differs for such values, or map them before it.",
        ) from error


def _categories(
    prober: Prober, signature: Signature, name: str, seen: Sequence[Any], graph: Path
) -> tuple[Category, ...]:
    """Return the values of a column that the graph answers as its source does."""
    column, feature = split_column(name, [spec.name for spec in signature.inputs])
    spec = next(spec for spec in signature.inputs if spec.name == column)
    probes = category_probes(spec, dict.fromkeys(seen), _constants(graph), feature)
    if len(probes) > MAX_CATEGORIES:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"column {name!r} takes known categories only, and {len(probes)} values may be some "
            f"(at most {MAX_CATEGORIES} are tried)",
            'Give its encoder handle_unknown="ignore", or an own value for unknown categories.',
        )
    excluded = {each.probe.value for each in prober.exclusions(probes)}
    kept = [probe.value for probe in probes if probe.value not in excluded]
    return tuple(sorted(each.decode() if isinstance(each, bytes) else each for each in kept))


def _constants(graph: Path) -> Iterable[Any]:
    """Yield the texts and integers of the graph: encoders keep their categories there."""
    import onnx

    model = onnx.load(str(graph))
    for part in graphs(model.graph):
        tensors = list(part.initializer)
        for node in part.node:
            for attribute in node.attribute:
                yield from attribute.strings
                yield from attribute.ints
                if attribute.HasField("t"):
                    tensors.append(attribute.t)
        for tensor in tensors:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype.kind in "OUS":
                yield from (
                    value if isinstance(value, bytes) else str(value).encode()
                    for value in array.ravel().tolist()
                )
            elif array.dtype.kind == "i" and array.size <= MAX_CATEGORIES:
                yield from array.ravel().tolist()


def _reasons(exclusions: Sequence[Exclusion]) -> Iterable[str]:
    """Yield a sentence for each kind and column that is excluded."""
    told: set[tuple[str, ProbeKind]] = set()
    not_negative = {each.probe.name for each in exclusions if each.probe.kind is ProbeKind.NEGATIVE}
    for each in exclusions:
        probe = each.probe
        if probe.kind is ProbeKind.SIZE or (
            probe.kind is ProbeKind.LARGE and probe.name in not_negative and probe.value < 0
        ):
            continue
        if (probe.name, probe.kind) not in told:
            told.add((probe.name, probe.kind))
            yield f"{probe.name}: {probe.kind.value} is rejected ({each.reason})."


def _inexpressible(exclusion: Exclusion) -> MlctlError:
    probe = exclusion.probe
    return MlctlError(
        ErrorCode.EXPORT_FAILED,
        f"the graph is not the model: column {probe.name!r}, {probe.kind.value}: "
        f"{exclusion.reason}",
        "Replace the step that takes that column, or do its work before the model is called.",
    )
