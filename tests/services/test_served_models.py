"""A Bento of two models, built and served: what BentoML's side makes of it, and a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mlctl.bento.packaging import BuiltBento, build_bento
from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import TRANSFORM_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.parity.online_paths import open_online
from mlctl.loadtest.target import Address
from mlctl.rollout.client.provenance import ProvenanceSources, chain
from mlctl.rollout.client.revisions import find_revision
from mlctl.services.layout.bento_layout import combine_bundles, read_contents
from mlctl.services.layout.bento_store import find_bento
from mlctl.services.layout.scorable import find_scorable
from tests.support.bundles import expected, make_bundle
from tests.support.serving import Server, launch, running
from tests.support.transforms import make_text_bundle

pytestmark = pytest.mark.slow
X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def shop(store_home: Path, tmp_path_factory: pytest.TempPathFactory) -> BuiltBento:
    folder = tmp_path_factory.mktemp("shop")
    bundles = [make_bundle(folder / "a", name="triple", scale=3.0), make_text_bundle(folder / "b")]
    labels = {
        "mlctl.model": "triple-optimized",
        "mlctl.version": "1",
        "mlctl.source": "models:/t/1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(store_home))
        return build_bento(combine_bundles(bundles, "shop"), labels)


@pytest.fixture(autouse=True)
def _store(store_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))


@pytest.fixture(scope="module")
def served(
    shop: BuiltBento, store_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    # Python writes the file of each module that it imports to the log.
    verbose = {"PYTHONVERBOSE": "1"}
    launched = launch(
        shop.tag, folder / "log", cwd=folder, bento_home=store_home, environment=verbose
    )
    with running(launched) as server:
        yield server


def test_server__of_a_bento__imports_the_code_in_the_bento(
    served: Server, shop: BuiltBento
) -> None:
    log = served.log.read_text(errors="replace")
    imported = set(re.findall(r"code object from '?([^'\n]*/services/[^'\n]*)", log))
    assert any("http" in path for path in imported)
    source = str(shop.path / "src")
    assert {path for path in imported if not path.startswith(source)} == set()


def test_predict__each_model__answers_in_its_own_form(served: Server, shop: BuiltBento) -> None:
    with httpx.Client(base_url=served.url) as client:
        for path in ("/predict", "/predict/triple"):
            answer = client.post(path, json={"x": X.tolist()})
            assert answer.json() == expected(X, scale=3.0).tolist()
        answer = client.post("/predict/texts", json={"text": ["one", "two three"]})
        assert answer.json() == {"kind": ["small", "large"], "total": [0.5, 2.5]}
        refused = client.post("/predict/texts", json={"x": X.tolist()})
        assert refused.status_code == 400
        assert "'text' is missing" in refused.json()["error"]
        assert client.post("/predict/other", json={}).status_code == 404
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one"]}
        answer = client.post("/v2/models/texts/infer", json={"inputs": [tensor]})
        assert answer.json()["outputs"][1]["data"] == [0.5]
        wrong = {**tensor, "shape": [2], "data": ["one", " "]}
        refused = client.post("/v2/models/texts/infer", json={"inputs": [wrong]})
        assert refused.status_code == 400
        assert refused.json()["error"] == "row 1: the text has no words"
        together = client.get("/v2/models/shop").json()
        assert together["versions"] == [shop.digest]
        metrics = client.get("/metrics").text
    for model in ("triple", "texts"):
        assert f'mlctl_requests_total{{model="{model}",outcome="ok",protocol="predict"}}' in metrics
        assert f'mlctl_workers{{model="{model}"}} 1.0' in metrics


def test_paths__each_model__are_answered_by_it(served: Server, shop: BuiltBento) -> None:
    asked: dict[str, tuple[Arrays, str, list[Any]]] = {
        "triple": ({"x": X}, "y", expected(X, scale=3.0).tolist()),
        "texts": ({"text": np.array([b"one", b"two three"], object)}, "total", [0.5, 2.5]),
    }
    address = Address("127.0.0.1", served.grpc_port, tls=False, headers={})
    with httpx.Client(base_url=served.url) as client:
        for bundle in read_contents(shop.path / "src").bundles:
            name, signature = bundle.manifest.name, bundle.manifest.signature
            inputs, output, wanted = asked.pop(name)
            for path in open_online(client, address, name, signature, alone=False):
                (found,) = path.infer([inputs], len(wanted))
                assert found[output].tolist() == wanted, (name, path.name)
    assert not asked


def test_find_revision__several_models__has_all_digests(shop: BuiltBento) -> None:
    revision = find_revision(shop.tag)
    models = read_contents(shop.path / "src").bundles
    assert models[1].path(TRANSFORM_NAME).is_file()
    assert (revision.name, revision.digest) == ("shop", shop.digest)
    assert revision.digests == tuple(bundle.digest for bundle in models)
    assert shop.tag == f"shop:{shop.digest[:12]}"


def test_chain__digest_of_one_model__names_the_bento(shop: BuiltBento) -> None:
    bento = find_bento(shop.tag)
    models = read_contents(bento.source).bundles
    assert bento.digests == {each.manifest.name: each.digest for each in models}
    known = ProvenanceSources([bento], [], [], [])
    assert known.digests() == {shop.digest, *bento.digests.values()}
    found = chain(models[1].digest, known)
    assert found["bentos"] == [shop.tag]
    assert found["source"]["uri"] == models[1].manifest.source.uri


def test_find_scorable__model_of_a_bento__is_found_by_name(shop: BuiltBento) -> None:
    for reference, name in {
        shop.tag: "triple", f"{shop.tag}/texts": "texts", "shop/texts": "texts",
        str(shop.path): "triple",
    }.items():  # fmt: skip
        assert find_scorable(reference).name == name
    with pytest.raises(MlctlError) as caught:
        find_scorable(f"{shop.tag}/other")
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
