"""A real server and a real batch job beside the scorer of this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from loadtest.parity.base import ParityCase, Way
from loadtest.parity.compare import PathVerdict
from loadtest.parity.online import open_online
from loadtest.parity.run import ask, golden_inputs, is_exact, judge, open_served
from loadtest.parity.streams import StreamWay
from loadtest.parity.tables import BatchWay
from loadtest.target import Address
from services.online.settings import ServerSettings, load_settings
from services.runtime.pipeline_scorer import VerifiedPipeline
from services.runtime.scorable import Scorable
from services.runtime.scorer import Scorer
from tests.support.bundles import expected, make_bundle
from tests.support.pairs import answer_of, make_pair_pipeline
from tests.support.serving import Server

X = np.random.default_rng(7).normal(size=(40, 4)).astype(np.float32)


def asked_of(bundle: VerifiedBundle, x: np.ndarray = X) -> list[ParityCase]:
    return list(ask(Scorer.open(bundle, load_settings()), "rows", {"x": x}))


@pytest.fixture
def online(server: Server, shared_bundle: VerifiedBundle) -> Iterator[list[Way]]:
    address = Address("127.0.0.1", server.grpc_port, tls=False, headers={})
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        yield open_online(client, address, "tiny", shared_bundle.manifest.signature)


def test_rows_are_asked_alone_and_together(shared_bundle: VerifiedBundle) -> None:
    alone, together = asked_of(shared_bundle)
    assert (alone.size, len(alone.requests)) == (1, 40)
    assert (together.size, [len(each["x"]) for each in together.requests]) == (32, [32, 8])


def test_rows_that_influence_each_other_are_asked_alone_only(tmp_path: Path) -> None:
    dependent = make_bundle(tmp_path / "bundle", row_independent=False)
    assert [each.size for each in asked_of(dependent)] == [1]


@pytest.mark.slow
def test_every_way_of_a_server_has_the_same_bits(
    online: list[Way], shared_bundle: VerifiedBundle
) -> None:
    names = [way.name for way in online]
    assert names == ["HTTP", "HTTP, JSON", "/predict", "gRPC"]
    for asked in asked_of(shared_bundle):
        for way in online:
            finding = judge(way, asked, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 40), finding


@pytest.mark.slow
def test_another_model_behind_the_server_is_told_in_every_way(
    online: list[Way], tmp_path: Path
) -> None:
    # A scale whose last bit differs.
    other = make_bundle(tmp_path / "bundle", scale=float(np.nextafter(np.float32(2), 3)))
    for way in online:
        finding = judge(way, asked_of(other)[1], None)
        assert finding.verdict is PathVerdict.DIFFERS, finding
        assert 0 < finding.differing <= 40
        assert judge(way, asked_of(other)[1], lambda _want: 1e-4).verdict is PathVerdict.CLOSE


@pytest.mark.slow
def test_a_request_that_is_refused_is_no_answer(online: list[Way], tmp_path: Path) -> None:
    wider = make_bundle(tmp_path / "bundle", features=5)
    asked = asked_of(wider, np.zeros((2, 5), np.float32))[0]
    for way in online:
        if way.name != "/predict":
            assert judge(way, asked, None).verdict is PathVerdict.NO_ANSWER
    assert "expected [-1, 4]" in judge(online[0], asked, None).detail


def test_a_server_that_is_gone_ends_the_comparison(shared_bundle: VerifiedBundle) -> None:
    nowhere = Address("127.0.0.1", 1, tls=False, headers={})
    with httpx.Client(base_url=nowhere.url, trust_env=False) as client:
        for way in open_online(client, nowhere, "tiny", shared_bundle.manifest.signature):
            with pytest.raises(MlctlError) as caught:
                judge(way, asked_of(shared_bundle)[0], None)
            assert caught.value.code is ErrorCode.UNAVAILABLE


def offline(model: Scorable) -> list[Way]:
    return [BatchWay(model), StreamWay(model, "json"), StreamWay(model, "arrow")]


def test_a_batch_and_a_stream_have_the_same_bits(shared_bundle: VerifiedBundle) -> None:
    for asked in asked_of(shared_bundle):
        for way in offline(shared_bundle):
            finding = judge(way, asked, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 40), finding


def test_a_batch_and_a_stream_of_another_model_differ(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    for way in offline(make_bundle(tmp_path / "bundle", scale=3.0)):
        finding = judge(way, asked_of(shared_bundle)[1], lambda _want: 1e-3)
        assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 40)


def test_rows_that_the_model_does_not_take_are_no_answer(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    wider = make_bundle(tmp_path / "bundle", features=5)
    asked = asked_of(wider, np.zeros((2, 5), np.float32))[0]
    for way in offline(shared_bundle):
        finding = judge(way, asked, None)
        assert (finding.verdict, finding.passed) == (PathVerdict.NO_ANSWER, False)
        assert finding.detail


def test_a_batch_and_a_stream_of_a_pipeline_have_the_bits_of_its_stages(tmp_path: Path) -> None:
    model = VerifiedPipeline.of(make_pair_pipeline(tmp_path))
    assert model is not None
    golden = golden_inputs(model)
    # The first stage has eight rows, the second one only four of what it takes from the caller.
    np.testing.assert_array_equal(golden["x"], np.arange(8, dtype=np.float32).reshape(4, 2) / 10)
    np.testing.assert_array_equal(golden["n"], np.arange(12).reshape(4, 3))
    alone, together = ask(open_served(model, load_settings()), "golden", golden)
    wanted = answer_of(expected(golden["x"]), golden["n"])
    for name, values in together.wanted[0].items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-5)
    for asked in (alone, together):
        for way in offline(model):
            finding = judge(way, asked, None)
            assert (finding.verdict, finding.rows) == (PathVerdict.SAME, 4), finding


def test_a_stage_of_other_answers_is_told_of_a_pipeline(tmp_path: Path) -> None:
    model = VerifiedPipeline.of(make_pair_pipeline(tmp_path / "made"))
    assert model is not None
    first = make_bundle(tmp_path / "other", name="first", features=2, scale=3.0)
    other = replace(model, stages=(first, model.stages[1]))
    together = list(ask(open_served(model, load_settings()), "golden", golden_inputs(model)))[-1]
    for way in offline(other):
        finding = judge(way, together, lambda _want: 1e-4)
        assert (finding.verdict, finding.output) == (PathVerdict.DIFFERS, "y"), finding


def test_what_json_has_no_word_for_is_left_out(shared_bundle: VerifiedBundle) -> None:
    with httpx.Client() as client:
        address = Address("127.0.0.1", 1, tls=False, headers={})
        ways = open_online(client, address, "tiny", shared_bundle.manifest.signature)
    asked = asked_of(shared_bundle, np.full((1, 4), np.nan, np.float32))[0]
    by_json = {way.name: judge(way, asked, None) for way in (ways[1], ways[2])}
    assert {each.verdict for each in by_json.values()} == {PathVerdict.LEFT_OUT}
    assert all(each.passed for each in by_json.values())
    assert judge(BatchWay(shared_bundle), asked, None).verdict is PathVerdict.SAME


def test_only_the_cpu_in_fp32_is_held_to_the_bit(shared_bundle: VerifiedBundle) -> None:
    assert is_exact(shared_bundle, ServerSettings())
    assert not is_exact(shared_bundle, ServerSettings(provider="cuda"))
