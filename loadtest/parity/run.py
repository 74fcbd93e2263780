"""A comparison: what is asked, what it must be, and what each way says to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import GOLDEN_NAME
from bundle.verify import VerifiedBundle
from loadtest.inputs import all_rows
from loadtest.parity.base import Arrays, ParityCase, Way
from loadtest.parity.compare import PathComparison, PathVerdict, Tolerance, compare
from loadtest.parity.online import open_online
from loadtest.parity.streams import StreamWay
from loadtest.parity.tables import BatchWay
from loadtest.runs import Protocols
from loadtest.server import serving
from services.online.settings import ServerSettings, load_settings
from services.runtime.bento_layout import read_bento_manifest
from services.runtime.bento_store import find_bento
from services.runtime.golden import load_golden
from services.runtime.pipeline_scorer import PipelineScorer, VerifiedPipeline
from services.runtime.scorable import Scorable, bundles_of
from services.runtime.scorer import Scorer, split_rows
from services.runtime.warmup import tolerance

# So many rows are also asked one by one: each takes a request in every way.
_ALONE = 256
_GOLDEN = "golden"
_PAYLOADS = ("json", "arrow")
_REQUEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What was found: `exact` says that the same request must have the same bits in every way."""

    digest: str
    exact: bool
    findings: tuple[PathComparison, ...]

    @property
    def passed(self) -> bool:
        """Whether no way differs by more than it may."""
        return all(finding.passed for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON carries it."""
        return {
            "digest": self.digest,
            "exact": self.exact,
            "passed": self.passed,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def run_parity(
    bento: str,
    model: Scorable,
    ports: tuple[int, int],
    rows: Path | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> ParityReport:
    """Serve `bento` on `ports`, ask it, a batch and a stream what is golden and in `rows`; compare.

    On the CPU in fp32 without padding no bit may differ; else the manifest's tolerance counts, of
    a pipeline that of its last stage, whose outputs it has.
    UNAVAILABLE if the server does not start, or ends.
    """
    settings = load_settings()
    scorer = open_served(model, settings)
    bundles = bundles_of(model)
    close = partial(tolerance, evidence=bundles[-1].manifest.evidence)
    exact = all(is_exact(bundle, settings) for bundle in bundles)
    tell("Scoring here ...")
    data = _data(model, rows)
    asked = [each for name, inputs in data.items() for each in ask(scorer, name, inputs)]
    findings = [_recorded(model, scorer, asked, close), *_sizes(asked, close)]
    tell(f"Starting {bento} ...")
    with _ways(bento, model, ports) as ways:
        for way in ways:
            tell(f"Asking by {way.name} ...")
            findings += [
                judge(way, each, None if exact else close, batched=scorer.batched) for each in asked
            ]
    return ParityReport(model.digest, exact, tuple(findings))


def open_served(model: Scorable, settings: ServerSettings) -> Scorer | PipelineScorer:
    """The scorer as a server has it, with calls of its size; of a pipeline those of its stages."""
    if isinstance(model, VerifiedPipeline):
        return PipelineScorer(model, tuple(Scorer.open(each, settings) for each in model.stages))
    return Scorer.open(model, settings)


def is_exact(bundle: VerifiedBundle, settings: ServerSettings) -> bool:
    """Whether a request's bits may not depend on its way: the CPU's fp32, and no padding."""
    provider = settings.provider or bundle.manifest.variant.target
    precise = bundle.manifest.variant.precision == "fp32"
    return provider == "cpu" and precise and not bundle.manifest.batching.pad


def ask(scorer: Scorer | PipelineScorer, data: str, inputs: Arrays) -> Iterator[ParityCase]:
    """The rows of `inputs` alone, and together where they may be; INVALID_INPUT if they misfit."""
    rows = scorer.check(inputs)
    if not scorer.batched:
        yield ParityCase(data, 1, [inputs], [scorer.run(inputs)])
        return
    sizes = {1: min(rows, _ALONE)}
    if scorer.joinable and rows > 1:
        sizes[min(scorer.max_rows, rows)] = rows
    for size, count in sizes.items():
        requests = list(split_rows({name: each[:count] for name, each in inputs.items()}, size))
        yield ParityCase(data, size, requests, [scorer.run(each) for each in requests])


def judge(
    way: Way, asked: ParityCase, close: Tolerance | None, *, batched: bool = True
) -> PathComparison:
    """What `way` answers to what is asked, beside what it must."""
    finding = PathComparison(way.name, asked.data, asked.size, PathVerdict.LEFT_OUT)
    for arrays in (*asked.requests, *asked.wanted):
        if reason := way.refusal(arrays):
            return replace(finding, detail=reason)
    try:
        have = way.answers(asked.requests, asked.size)
    except MlctlError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            raise
        return replace(finding, verdict=PathVerdict.NO_ANSWER, detail=error.message)
    return compare(way.name, asked.data, asked.size, asked.wanted, have, close, batched=batched)


def golden_inputs(model: Scorable) -> dict[str, np.ndarray]:
    """The golden rows; of a pipeline those of its stages for what comes from the caller.

    Those are as many as the stage with the fewest has.
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


def _data(model: Scorable, rows: Path | None) -> Mapping[str, Arrays]:
    golden = golden_inputs(model)
    if rows is None:
        return {_GOLDEN: golden}
    return {_GOLDEN: golden, rows.name: all_rows(model.signature, rows)}


def _recorded(
    model: Scorable, scorer: Scorer | PipelineScorer, asked: Sequence[ParityCase], close: Tolerance
) -> PathComparison:
    """What the source model answered to the golden rows, beside what this one does here."""
    largest = [each for each in asked if each.data == _GOLDEN][-1]
    if isinstance(model, VerifiedPipeline):
        told = "nothing is recorded of a pipeline as a whole"
        return PathComparison("recorded", _GOLDEN, largest.size, PathVerdict.LEFT_OUT, detail=told)
    recorded = load_golden(model.path(GOLDEN_NAME))[1]
    wanted = [recorded]
    if scorer.batched:
        wanted = list(split_rows(recorded, largest.size))[: len(largest.wanted)]
    return compare(
        "recorded", _GOLDEN, largest.size, wanted, largest.wanted, close, batched=scorer.batched
    )


def _sizes(asked: Sequence[ParityCase], close: Tolerance) -> Iterator[PathComparison]:
    """Rows together beside the same rows alone: another number of rows may take other kernels."""
    for alone, together in pairwise(asked):
        if alone.data == together.data and together.size > 1:
            joined, single = (_joined(each.wanted) for each in (together, alone))
            count = len(next(iter(single.values())))
            head = {name: array[:count] for name, array in joined.items()}
            yield compare("rows together", alone.data, together.size, [single], [head], close)


def _joined(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _ways(bento: str, model: Scorable, ports: tuple[int, int]) -> Iterator[list[Way]]:
    # Stored answers are not the model's, and what it stores would be seen by others.
    settings = {"MLCTL_PRECOMPUTED": ""}
    alone = read_bento_manifest(find_bento(bento).source) is None
    with tempfile.TemporaryDirectory(prefix="mlctl-parity-") as folder:
        log = Path(folder) / "log"
        with (
            serving(bento, ports, Protocols.GRPC, log, settings) as served,
            httpx.Client(
                base_url=f"http://127.0.0.1:{ports[0]}",
                headers=dict(served.address.headers),
                timeout=_REQUEST_SECONDS,
                trust_env=False,
            ) as client,
        ):
            online = open_online(client, served.address, model.name, model.signature, alone=alone)
            yield [*online, BatchWay(model), *(StreamWay(model, each) for each in _PAYLOADS)]
