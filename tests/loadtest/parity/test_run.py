"""A real server, batch job and stream compared with the scorer of this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.parity.batch_path import BatchPath
from mlctl.loadtest.parity.compare import PathVerdict
from mlctl.loadtest.parity.online_paths import open_online
from mlctl.loadtest.parity.paths import InferencePath, ParityCase
from mlctl.loadtest.parity.run import golden_inputs, is_exact, judge, open_served, parity_cases
from mlctl.loadtest.parity.stream_path import StreamPath
from mlctl.loadtest.target import Address
from mlctl.services.layout.pipeline_scorer import VerifiedPipeline
from mlctl.services.layout.scorable import Scorable
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.settings import ServerSettings, load_settings
from tests.support.bundles import expected, make_bundle
from tests.support.pairs import answer_of, make_pair_pipeline
from tests.support.serving import Server

X = np.random.default_rng(7).normal(size=(40, 4)).astype(np.float32)


def cases_of(bundle: VerifiedBundle, x: np.ndarray = X) -> list[ParityCase]:
    return list(parity_cases(Scorer.open(bundle, load_settings()), "rows", {"x": x}))


@pytest.fixture
def online(server: Server, shared_bundle: VerifiedBundle) -> Iterator[list[InferencePath]]:
    address = Address("127.0.0.1", server.grpc_port, tls=False, headers={})
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        yield open_online(client, address, "tiny", shared_bundle.manifest.signature)


def test_parity_cases__independent_rows__are_sent_alone_and_together(
    shared_bundle: VerifiedBundle,
) -> None:
    alone, together = cases_of(shared_bundle)
    assert (alone.size, len(alone.requests)) == (1, 40)
    assert (together.size, [len(each["x"]) for each in together.requests]) == (32, [32, 8])


def test_parity_cases__dependent_rows__are_sent_alone_only(tmp_path: Path) -> None:
    dependent = make_bundle(tmp_path / "bundle", row_independent=False)
    assert [each.size for each in cases_of(dependent)] == [1]


@pytest.mark.slow
def test_online_paths__real_server__give_the_same_bits(
    online: list[InferencePath], shared_bundle: VerifiedBundle
) -> None:
    names = [path.name for path in online]
    assert names == ["HTTP", "HTTP, JSON", "/predict", "gRPC"]
    for case in cases_of(shared_bundle):
        for path in online:
            finding = judge(path, case, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 40), finding


@pytest.mark.slow
def test_online_paths__another_model__differ(online: list[InferencePath], tmp_path: Path) -> None:
    # A scale whose last bit differs.
    other = make_bundle(tmp_path / "bundle", scale=float(np.nextafter(np.float32(2), 3)))
    for path in online:
        finding = judge(path, cases_of(other)[1], None)
        assert finding.verdict is PathVerdict.DIFFERS, finding
        assert 0 < finding.differing <= 40
        assert judge(path, cases_of(other)[1], lambda _want: 1e-4).verdict is PathVerdict.CLOSE


@pytest.mark.slow
def test_online_paths__rejected_request__is_no_answer(
    online: list[InferencePath], tmp_path: Path
) -> None:
    wider = make_bundle(tmp_path / "bundle", features=5)
    case = cases_of(wider, np.zeros((2, 5), np.float32))[0]
    for path in online:
        if path.name != "/predict":
            assert judge(path, case, None).verdict is PathVerdict.NO_ANSWER
    assert "expected [-1, 4]" in judge(online[0], case, None).detail


def test_online_paths__no_server__end_the_comparison(shared_bundle: VerifiedBundle) -> None:
    nowhere = Address("127.0.0.1", 1, tls=False, headers={})
    with httpx.Client(base_url=nowhere.url, trust_env=False) as client:
        for path in open_online(client, nowhere, "tiny", shared_bundle.manifest.signature):
            with pytest.raises(MlctlError) as caught:
                judge(path, cases_of(shared_bundle)[0], None)
            assert caught.value.code is ErrorCode.UNAVAILABLE


def offline(model: Scorable) -> list[InferencePath]:
    return [BatchPath(model), StreamPath(model)]


def test_batch_and_stream__same_model__give_the_same_bits(shared_bundle: VerifiedBundle) -> None:
    for case in cases_of(shared_bundle):
        for path in offline(shared_bundle):
            finding = judge(path, case, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 40), finding


def test_batch_and_stream__another_model__differ(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    for path in offline(make_bundle(tmp_path / "bundle", scale=3.0)):
        finding = judge(path, cases_of(shared_bundle)[1], lambda _want: 1e-3)
        assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 40)


def test_batch_and_stream__rows_of_another_shape__are_no_answer(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    wider = make_bundle(tmp_path / "bundle", features=5)
    case = cases_of(wider, np.zeros((2, 5), np.float32))[0]
    for path in offline(shared_bundle):
        finding = judge(path, case, None)
        assert (finding.verdict, finding.passed) == (PathVerdict.NO_ANSWER, False)
        assert finding.detail


def test_batch_and_stream__pipeline__give_the_bits_of_its_stages(tmp_path: Path) -> None:
    model = VerifiedPipeline.of(make_pair_pipeline(tmp_path))
    assert model is not None
    golden = golden_inputs(model)
    # The first stage has eight rows, the second one only four of what it takes from the caller.
    np.testing.assert_array_equal(golden["x"], np.arange(8, dtype=np.float32).reshape(4, 2) / 10)
    np.testing.assert_array_equal(golden["n"], np.arange(12).reshape(4, 3))
    alone, together = parity_cases(open_served(model, load_settings()), "golden", golden)
    wanted = answer_of(expected(golden["x"]), golden["n"])
    for name, values in together.expected[0].items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-5)
    for case in (alone, together):
        for path in offline(model):
            finding = judge(path, case, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 4), finding


def test_batch_and_stream__pipeline_with_another_stage__differ(tmp_path: Path) -> None:
    model = VerifiedPipeline.of(make_pair_pipeline(tmp_path / "made"))
    assert model is not None
    first = make_bundle(tmp_path / "other", name="first", features=2, scale=3.0)
    other = replace(model, stages=(first, model.stages[1]))
    together = list(
        parity_cases(open_served(model, load_settings()), "golden", golden_inputs(model))
    )[-1]
    for path in offline(other):
        finding = judge(path, together, lambda _want: 1e-4)
        assert (finding.verdict, finding.output) == (PathVerdict.DIFFERS, "y"), finding


def test_json_paths__nan__are_left_out(shared_bundle: VerifiedBundle) -> None:
    with httpx.Client() as client:
        address = Address("127.0.0.1", 1, tls=False, headers={})
        paths = open_online(client, address, "tiny", shared_bundle.manifest.signature)
    case = cases_of(shared_bundle, np.full((1, 4), np.nan, np.float32))[0]
    by_json = {path.name: judge(path, case, None) for path in (paths[1], paths[2])}
    assert {each.verdict for each in by_json.values()} == {PathVerdict.LEFT_OUT}
    assert all(each.passed for each in by_json.values())
    assert judge(BatchPath(shared_bundle), case, None).verdict is PathVerdict.SAME


def test_is_exact__fp32_on_cpu__alone_is_exact(shared_bundle: VerifiedBundle) -> None:
    assert is_exact(shared_bundle, ServerSettings())
    assert not is_exact(shared_bundle, ServerSettings(provider="cuda"))
