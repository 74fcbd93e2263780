"""Which models enter, and how far their answers are from the source model's on 1,000 fresh rows.

Every model goes through the real chain: it is logged with MLflow, resolved, exported, proved and
sealed. One Bento serves all that are accepted. Fresh rows are then sent in requests of 1, 7 and 64
rows to the server (V2 with binary data), to a batch job and to a stream, and each answer is
compared with that of the source model as its own library runs it. `--only PART` takes the models
whose name or format contains PART.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from benchmarks.model_zoo import CASES, Arrays, ModelCase
from benchmarks.result import BenchmarkResult, argument_parser, measuring
from mlctl.bento.packaging import build_bento
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.core.quiet import quiet
from mlctl.loadtest.parity.batch_path import BatchPath
from mlctl.loadtest.parity.online_paths import HttpPath
from mlctl.loadtest.parity.paths import InferencePath
from mlctl.loadtest.parity.stream_path import StreamPath
from mlctl.loadtest.runs import Protocols
from mlctl.loadtest.server import serving
from mlctl.optimize.inputs.prepare import OptimizeOptions, prepare
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.proofs.baseline import Runner
from mlctl.optimize.proofs.reference import load_reference
from mlctl.optimize.recipes.fp32 import Fp32
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import TRACKING_VARIABLE, configure_tracking
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.model.scorer import split_rows

FRESH, EVALUATION, SIZES = 1000, 120, (1, 7, 64)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A sealed bundle, and the source model's answers to the fresh rows."""

    bundle: VerifiedBundle
    fresh: Arrays
    answers: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What became of a model: its worst difference by path, or the sentence that rejects it."""

    case: ModelCase
    worst: dict[str, float | None] = field(default_factory=dict)
    rejection: str = ""


def accept(case: ModelCase, folder: Path, fresh_rows: int) -> Accepted:
    """Register the model and take it through the chain; raises what `mlctl optimize` raises."""
    configure_tracking()
    with quiet():
        case.register(case.name)
    path = write_rows(case, folder)
    catalog = MlflowCatalog()
    result = optimize(case.name, path, catalog=catalog, recipes=[Fp32()])
    prepared = prepare(catalog.resolve(case.name), path, OptimizeOptions())
    run: Runner = load_reference(prepared.source).run
    if prepared.transform is not None:
        run = prepared.transform.around(run)
    fresh = case.rows(fresh_rows, 2)
    parts = [run(dict(part)) for part in split_rows(fresh, 64)]
    answers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Accepted(result.bundle, fresh, answers)


def write_rows(case: ModelCase, folder: Path) -> Path:
    """Write the model's evaluation rows into `folder`; return their file."""
    path = folder / f"{case.name}.npz"
    rows = {name: _storable(array) for name, array in case.rows(EVALUATION, 1).items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **rows)
    return path


def worst_difference(accepted: Accepted, path: InferencePath, sizes: Sequence[int]) -> float | None:
    """Return the worst difference over all sizes of a request, relative to the largest answer.

    Infinite where a label differs; None if the path cannot carry such values.
    """
    if path.limitation(accepted.fresh) or path.limitation(accepted.answers):
        return None
    worst = 0.0
    for size in sizes:
        requests = list(split_rows(accepted.fresh, size))
        found = path.infer(requests, size)
        for name, want in accepted.answers.items():
            have = np.concatenate([np.asarray(part[name]) for part in found])
            worst = max(worst, _difference(want, have))
    return worst


def _difference(want: np.ndarray, have: np.ndarray) -> float:
    if want.shape != have.shape or want.dtype != have.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(want, have) else float("inf")
    return float(np.abs(want - have).max() / (np.abs(want).max() or 1.0))


def _storable(array: np.ndarray) -> np.ndarray:
    """Return text as NumPy's own, which a file holds without pickles."""
    if array.dtype != object:
        return array
    return np.array([value.decode() for value in array.flat]).reshape(array.shape)


def measure(
    cases: Sequence[ModelCase], *, online: bool = True, fresh_rows: int = FRESH
) -> Iterator[ModelResult]:
    """Yield the result of each model; all that are accepted are served by one server."""
    found: list[tuple[ModelCase, Accepted]] = []
    with tempfile.TemporaryDirectory(prefix="mlctl-models-") as name:
        for case in cases:
            try:
                found.append((case, accept(case, Path(name), fresh_rows)))
            except MlctlError as error:
                yield ModelResult(case, rejection=error.message)
        with ExitStack() as stack:
            client = None
            if online and found:
                bundles = [accepted.bundle for _, accepted in found]
                client = stack.enter_context(_served(bundles))
            for case, accepted in found:
                paths = list(_paths(accepted.bundle, client))
                worst = {path.name: worst_difference(accepted, path, SIZES) for path in paths}
                yield ModelResult(case, worst)


def _paths(bundle: VerifiedBundle, client: httpx.Client | None) -> Iterator[InferencePath]:
    if client is not None:
        path = f"/v2/models/{bundle.manifest.name}/infer"
        yield HttpPath("online", client, path, bundle.manifest.signature, binary=True)
    yield BatchPath(bundle)
    yield StreamPath(bundle)


@contextmanager
def _served(bundles: Sequence[VerifiedBundle]) -> Iterator[httpx.Client]:
    """Serve the bundles from one Bento; yield a client of the server."""
    name = "models" if len(bundles) > 1 else None
    built = build_bento(combine_bundles(list(bundles), name), {})
    with (
        serving(built.tag, Protocols.HTTP) as served,
        httpx.Client(base_url=served.address.url, timeout=60.0, trust_env=False) as client,
    ):
        yield client


def report(results: Sequence[ModelResult], result: BenchmarkResult) -> None:
    """Add a table of the accepted models, and one of the rejected with the sentences."""
    accepted = [each for each in results if not each.rejection]
    paths = list(accepted[0].worst) if accepted else []
    table = result.table(
        f"Accepted: worst difference on {FRESH:,} fresh rows, at {SIZES} rows a request",
        "model",
        "format",
        *paths,
    )
    for each in accepted:
        table.add(each.case.name, each.case.format, *map(_cell, each.worst.values()))
    rejected = result.table("Rejected", "model", "format", "error")
    for each in results:
        if each.rejection:
            rejected.add(each.case.name, each.case.format, each.rejection)


def _cell(worst: float | None) -> str:
    return "-" if worst is None else f"{worst:.0e}" if worst else "0"


def main() -> None:
    """Take every model through the chain and over every path."""
    parser = argument_parser("models", __doc__)
    parser.add_argument("--only", default="", help="models whose name or format contains this")
    options = parser.parse_args()
    cases = [each for each in CASES if options.only in f"{each.name} {each.format}"]
    with (
        measuring("models", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as home,
    ):
        os.environ[HOME_VARIABLE] = home
        os.environ.pop(TRACKING_VARIABLE, None)
        report(list(measure(cases)), result)


if __name__ == "__main__":
    main()
