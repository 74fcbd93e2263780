"""Compare the outputs of every path with those of the scorer in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import GOLDEN_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.inputs import all_rows
from mlctl.loadtest.parity.batch_path import BatchPath
from mlctl.loadtest.parity.compare import PathComparison, PathVerdict, Tolerance, compare
from mlctl.loadtest.parity.online_paths import open_online
from mlctl.loadtest.parity.paths import InferencePath, ParityCase
from mlctl.loadtest.parity.stream_path import StreamPath
from mlctl.loadtest.runs import Protocols
from mlctl.loadtest.server import serving
from mlctl.services.layout.bento_layout import read_bento_manifest
from mlctl.services.layout.bento_store import find_bento
from mlctl.services.layout.pipeline_scorer import PipelineScorer, VerifiedPipeline
from mlctl.services.layout.scorable import Scorable, bundles_of
from mlctl.services.model.golden import load_golden
from mlctl.services.model.scorer import Scorer, split_rows
from mlctl.services.model.warmup import tolerance
from mlctl.services.online.settings import ServerSettings, load_settings

# At most this many rows are also sent one by one: each is a request on every path.
_MAX_SINGLE_ROWS = 256
_GOLDEN = "golden"
_REQUEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The comparisons; `exact` says that a request must give the same bits on every path."""

    digest: str
    exact: bool
    findings: tuple[PathComparison, ...]

    @property
    def passed(self) -> bool:
        """Whether every path is within its tolerance."""
        return all(finding.passed for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as --json shows it."""
        return {
            "digest": self.digest,
            "exact": self.exact,
            "passed": self.passed,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def run_parity(
    bento: str,
    model: Scorable,
    rows: str | None = None,
    report: Callable[[str], None] = lambda _text: None,
) -> ParityReport:
    """Serve `bento` and send the golden rows and those of `rows` over every path.

    On the CPU in fp32 without padding no bit may differ. Otherwise the manifest's tolerance
    applies; a pipeline has that of its last stage. `report` gets the progress.
    UNAVAILABLE if the server does not start, or ends.
    """
    settings = load_settings()
    scorer = open_served(model, settings)
    bundles = bundles_of(model)
    close = partial(tolerance, evidence=bundles[-1].manifest.evidence)
    exact = all(is_exact(bundle, settings) for bundle in bundles)
    report("Scoring in this process ...")
    data = _data(model, rows)
    cases = [each for name, inputs in data.items() for each in parity_cases(scorer, name, inputs)]
    findings = [_recorded(model, scorer, cases, close), *_sizes(cases, close)]
    report(f"Starting {bento} ...")
    with _paths(bento, model) as paths:
        for path in paths:
            report(f"Sending requests over {path.name} ...")
            findings += [
                judge(path, each, None if exact else close, batched=scorer.batched)
                for each in cases
            ]
    return ParityReport(model.digest, exact, tuple(findings))


def open_served(model: Scorable, settings: ServerSettings) -> Scorer | PipelineScorer:
    """Open the scorer with a server's settings; a pipeline has one for each stage."""
    if isinstance(model, VerifiedPipeline):
        return PipelineScorer(model, tuple(Scorer.open(each, settings) for each in model.stages))
    return Scorer.open(model, settings)


def is_exact(bundle: VerifiedBundle, settings: ServerSettings) -> bool:
    """Return whether the bits of an output must not depend on the path: fp32 on CPU, unpadded."""
    provider = settings.provider or bundle.manifest.variant.target
    precise = bundle.manifest.variant.precision == "fp32"
    padded = bool(bundle.manifest.batching.pad)
    return provider == "cpu" and precise and not padded


def parity_cases(
    scorer: Scorer | PipelineScorer, data: str, inputs: Arrays
) -> Iterator[ParityCase]:
    """Yield the rows of `inputs` one by one, and together if the model allows; INVALID_INPUT."""
    rows = scorer.check(inputs)
    if not scorer.batched:
        yield ParityCase(data, 1, [inputs], [scorer.run(inputs)])
        return
    sizes = {1: min(rows, _MAX_SINGLE_ROWS)}
    if scorer.joinable and rows > 1:
        sizes[min(scorer.max_rows, rows)] = rows
    for size, count in sizes.items():
        requests = list(split_rows({name: each[:count] for name, each in inputs.items()}, size))
        yield ParityCase(data, size, requests, [scorer.run(each) for each in requests])


def judge(
    path: InferencePath, case: ParityCase, close: Tolerance | None, *, batched: bool = True
) -> PathComparison:
    """Compare the outputs of `path` with the expected ones of `case`."""
    finding = PathComparison(path.name, case.data, case.size, PathVerdict.LEFT_OUT)
    for arrays in (*case.requests, *case.expected):
        if reason := path.limitation(arrays):
            return replace(finding, detail=reason)
    try:
        actual = path.infer(case.requests, case.size)
    except MlctlError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            raise
        return replace(finding, verdict=PathVerdict.NO_ANSWER, detail=error.message)
    return compare(path.name, case.data, case.size, case.expected, actual, close, batched=batched)


def golden_inputs(model: Scorable) -> dict[str, np.ndarray]:
    """Return the golden rows; for a pipeline, those of its stages for the caller's inputs.

    Their number is that of the stage with the fewest rows.
    """
    found: dict[str, np.ndarray] = {}
    for bundle in bundles_of(model):
        for name, array in load_golden(bundle.path(GOLDEN_NAME))[0].items():
            if not (
                isinstance(model, VerifiedPipeline) and model.pipeline.origin(bundle.name, name)
            ):
                found.setdefault(name, array)
    if not model.signature.batched:
        return found
    rows = min(map(len, found.values()))
    return {name: array[:rows] for name, array in found.items()}


def _data(model: Scorable, rows: str | None) -> Mapping[str, Arrays]:
    golden = golden_inputs(model)
    if rows is None:
        return {_GOLDEN: golden}
    return {_GOLDEN: golden, Path(rows).name: all_rows(model.signature, rows)}


def _recorded(
    model: Scorable, scorer: Scorer | PipelineScorer, cases: Sequence[ParityCase], close: Tolerance
) -> PathComparison:
    """Compare the recorded outputs of the source model with those of this model here."""
    largest = [each for each in cases if each.data == _GOLDEN][-1]
    looks_up = isinstance(scorer, Scorer) and scorer.lookups is not None
    if looks_up or isinstance(model, VerifiedPipeline):
        reason = "nothing is recorded of a pipeline as a whole"
        if looks_up:
            reason = "stored features may differ from those of the record"
        return PathComparison(
            "recorded", _GOLDEN, largest.size, PathVerdict.LEFT_OUT, detail=reason
        )
    recorded = load_golden(model.path(GOLDEN_NAME))[1]
    expected = [recorded]
    if scorer.batched:
        expected = list(split_rows(recorded, largest.size))[: len(largest.expected)]
    return compare(
        "recorded",
        _GOLDEN,
        largest.size,
        expected,
        largest.expected,
        close,
        batched=scorer.batched,
    )


def _sizes(cases: Sequence[ParityCase], close: Tolerance) -> Iterator[PathComparison]:
    """Compare rows together with the same rows alone: other batch sizes may use other kernels."""
    for alone, together in pairwise(cases):
        if alone.data == together.data and together.size > 1:
            joined, single = (_joined(each.expected) for each in (together, alone))
            count = len(next(iter(single.values())))
            head = {name: array[:count] for name, array in joined.items()}
            yield compare("rows together", alone.data, together.size, [single], [head], close)


def _joined(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _paths(bento: str, model: Scorable) -> Iterator[list[InferencePath]]:
    # Precomputed answers do not come from the model.
    settings = {"MLCTL_PRECOMPUTED": ""}
    alone = read_bento_manifest(find_bento(bento).source) is None
    with serving(bento, Protocols.GRPC, settings) as served:
        assert served.metrics is not None
        with httpx.Client(
            base_url=served.metrics.url,
            headers=dict(served.metrics.headers),
            timeout=_REQUEST_SECONDS,
            trust_env=False,
        ) as client:
            online = open_online(client, served.address, model.name, model.signature, alone=alone)
            yield [*online, BatchPath(model), StreamPath(model)]
