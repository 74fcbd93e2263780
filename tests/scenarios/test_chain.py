"""A registered model goes all the way, and every client gets the model's own numbers."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlctl.bundle.verify import verify
from mlctl.core.ports import free_ports
from mlctl.examples.digits.data import load_split
from tests.scenarios.conftest import Shop

pytestmark = [pytest.mark.slow, pytest.mark.serial]

ROWS = 40


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    return load_split()[1].images[:ROWS]


@pytest.fixture(scope="module")
def torch_answers(shop: Shop, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the registered torch model itself says."""
    from mlctl.optimize.proofs.reference import load_reference
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCTL_HOME", str(shop.mlctl.home))
        source = MlflowCatalog().resolve(shop.optimized["source"])
        return load_reference(source).run({"image": images})["logits"]


@pytest.fixture(scope="module")
def tolerance(shop: Shop) -> float:
    """The parity that the chosen variant states; the small rest is float32 noise."""
    chosen = next(each for each in shop.optimized["variants"] if each["chosen"])
    return float(chosen["measured"]["parity"]["max_abs_error"]) * 1.001 + 1e-5


def close(found: object, wanted: NDArray[np.float32], tolerance: float) -> bool:
    return float(np.abs(np.asarray(found) - wanted).max()) <= tolerance


def test_chain__tritonclient_over_http__gets_the_models_numbers(
    shop: Shop, images: NDArray[np.float32], torch_answers: NDArray[np.float32], tolerance: float
) -> None:
    import tritonclient.http as v2

    with v2.InferenceServerClient(f"127.0.0.1:{shop.port}") as client:
        assert client.is_server_ready()
        assert client.is_model_ready("digits")
        assert client.get_model_metadata("digits")["versions"] == [shop.built["digest"]]
        for binary in (True, False):
            tensor = v2.InferInput("image", list(images.shape), "FP32")
            tensor.set_data_from_numpy(images, binary_data=binary)
            result = client.infer("digits", [tensor])
            assert result.get_response()["model_version"] == shop.built["digest"]
            assert close(result.as_numpy("logits"), torch_answers, tolerance)


def test_chain__tritonclient_over_grpc_on_the_same_port__gets_the_models_numbers(
    shop: Shop, images: NDArray[np.float32], torch_answers: NDArray[np.float32], tolerance: float
) -> None:
    import tritonclient.grpc as v2

    with v2.InferenceServerClient(f"127.0.0.1:{shop.port}") as client:
        assert client.is_server_ready()
        tensor = v2.InferInput("image", list(images.shape), "FP32")
        tensor.set_data_from_numpy(images)
        result = client.infer("digits", [tensor])
        assert result.get_response().model_version == shop.built["digest"]
        assert close(result.as_numpy("logits"), torch_answers, tolerance)


def test_chain__bentomls_client__gets_the_models_numbers(
    shop: Shop, images: NDArray[np.float32], torch_answers: NDArray[np.float32], tolerance: float
) -> None:
    import bentoml

    with bentoml.SyncHTTPClient(f"http://127.0.0.1:{shop.port}") as client:
        answer = client.call("predict", image=images)
    found = answer["logits"] if isinstance(answer, dict) else answer
    assert close(found, torch_answers, tolerance)


def test_chain__plain_json_of_the_readme__gets_the_models_numbers(
    shop: Shop, images: NDArray[np.float32], torch_answers: NDArray[np.float32], tolerance: float
) -> None:
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32"}
    answer = httpx.post(
        f"http://127.0.0.1:{shop.port}/v2/models/digits/infer",
        json={"inputs": [{**tensor, "data": images[0].ravel().tolist()}]},
    ).json()
    assert answer["model_version"] == shop.built["digest"]
    assert close(answer["outputs"][0]["data"], torch_answers[0], tolerance)


def test_chain__registry__holds_the_lineage(shop: Shop) -> None:
    rows = {row["name"]: row for row in shop.mlctl.json("models")["models"]}
    assert rows["digits-optimized"]["digest"] == shop.built["digest"]
    assert rows["digits-optimized"]["source_uri"] == shop.optimized["source"]
    assert rows["digits"]["aliases"] == ["candidate"]
    # Only a promotion that was proved makes a champion; `up` proves nothing.
    assert rows["digits-optimized"]["aliases"] == []


def test_chain__optimized_and_built_again__changes_nothing(shop: Shop, tmp_path: Path) -> None:
    again = shop.mlctl.json("optimize", "models:/digits@candidate", "--data", str(shop.data))
    assert again["digest"] == shop.optimized["digest"]
    assert again["model"] == shop.optimized["model"]
    built = shop.mlctl.json("build", "digits", "--push", f"oci:{tmp_path / 'out'}")
    assert built["reused"]
    assert built["content_digest"] == shop.built["content_digest"]
    assert built["pushed"]["reference"] == f"oci:{tmp_path / 'out'}#{built['tag']}"
    listing = tmp_path / "out" / "blobs" / "sha256" / built["pushed"]["archive_digest"]
    assert json.loads(listing.read_bytes())["digest"] == built["digest"]


def test_pull__bundle__verifies(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "model"
    pulled = shop.mlctl.json("pull", "digits", "--out", str(out))
    assert verify(out, shop.built["digest"]).digest == pulled["digest"]
    refused = shop.mlctl.run("pull", "digits", "--out", str(out))
    assert refused.returncode == 2
    assert "not empty" in refused.stderr


def test_status__deployment_is_up__shows_the_live_bento(shop: Shop) -> None:
    status = shop.mlctl.json("status", "shop")["deployments"][0]
    assert status["live"]["digest"] == shop.built["digest"]
    assert sum(status["weights"].values()) == 100
    text = shop.mlctl.run("status", "shop").stdout
    assert shop.built["tag"] in text


def test_promote__model_that_already_serves__is_rejected(shop: Shop) -> None:
    refused = shop.mlctl.run("promote", "shop", shop.built["tag"])
    assert refused.returncode == 8
    assert "already serves" in refused.stderr


def test_show__digest_that_serves__prints_the_chain(shop: Shop) -> None:
    told = shop.mlctl.json("show", shop.built["digest"][:12])
    assert (told["digest"], told["bentos"]) == (shop.built["digest"], [shop.built["tag"]])
    assert told["source"]["uri"] == shop.optimized["source"]
    assert told["source"]["aliases"] == ["candidate"]
    assert told["source"]["run"]
    assert told["optimized"]["run"] != told["source"]["run"]
    assert told["evidence"]["rows"] > 0
    assert (told["rollouts"], told["serves"]) == ([], ["shop"])
    assert shop.built["digest"] in shop.mlctl.run("show", shop.built["digest"]).stdout


def test_up__name_or_port_in_use__is_rejected(shop: Shop) -> None:
    same_name = shop.mlctl.run("up", "shop", shop.built["tag"])
    assert same_name.returncode == 8
    assert "mlctl promote" in same_name.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        same_port = shop.mlctl.run("up", "other", shop.built["tag"], "--port", port)
        served = shop.mlctl.run("serve", shop.built["tag"], "--port", port)
    assert (same_port.returncode, served.returncode) == (8, 8)
    assert port in same_port.stderr
    assert port in served.stderr


def test_optimize__misspelled_name__offers_a_near_one(shop: Shop) -> None:
    for wrong, offered in (("models:/digit/1", "'digits'"), ("digits@canditate", "'candidate'")):
        refused = shop.mlctl.run("optimize", wrong, "--data", str(shop.data))
        assert refused.returncode == 3, refused.stderr
        assert offered in refused.stderr


def test_optimize__goal_that_nothing_meets__shows_the_table(shop: Shop) -> None:
    goals = ("--max-size-mb", "0.000001")
    refused = shop.mlctl.run("optimize", "digits", "--data", str(shop.data), *goals)
    assert refused.returncode == 5
    assert "int8-static" in refused.stdout
    assert "no variant meets the goals" in refused.stderr


def test_up__one_byte_of_the_bento_changed__does_not_start(shop: Shop) -> None:
    path = Path(shop.built["bundle"]) / "model.onnx"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused = shop.mlctl.run(
            "up", "tampered", shop.built["tag"], "--port", str(free_ports(1)[0])
        )
    finally:
        path.write_bytes(content)
    assert refused.returncode == 4
    assert "model.onnx" in refused.stderr
    assert "sha256" in refused.stderr
    names = [
        each["name"]
        for each in json.loads(shop.mlctl.run("status", "--json").stdout)["deployments"]
    ]
    assert names == ["shop"]
