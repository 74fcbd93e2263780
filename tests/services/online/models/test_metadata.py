import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.models.metadata import (
    EXTENSIONS,
    model_metadata,
    only_ready,
    reject_change,
    repository_index,
    server_metadata,
)
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings


async def test_repository_index__model_starts_and_stops__follows(bundle: VerifiedBundle) -> None:
    entry = {"name": "tiny", "version": bundle.digest}

    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    starting = {**entry, "state": "UNAVAILABLE", "reason": "starting"}
    assert repository_index(host, ready=False) == [starting]
    assert repository_index(host, ready=True) == []
    await host.start()
    for ready in (True, False):
        found = repository_index(host, ready=ready)
        assert found == [{**entry, "state": "READY", "reason": ""}]
    await host.stop()
    assert repository_index(host, ready=False)[0]["reason"] == "stopping"


def test_metadata__server_and_model__have_their_fields(bundle: VerifiedBundle) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    assert server_metadata()["extensions"] == list(EXTENSIONS)
    assert model_metadata(host) == {
        "name": "tiny",
        "versions": [bundle.digest],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }


def test_only_ready__empty_or_invalid_body__is_read_or_rejected() -> None:
    assert not only_ready(b"")
    assert not only_ready(b" {}\n")
    assert not only_ready(b'{"ready": null}')
    assert only_ready(b'{"ready": true}')
    for wrong in (b'{"ready": "true"}', b"{"):
        with pytest.raises(MlctlError) as caught:
            only_ready(wrong)
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_reject_change__unload__is_not_permitted() -> None:
    with pytest.raises(MlctlError, match="does not unload models") as caught:
        reject_change("unload")
    assert caught.value.code is ErrorCode.NOT_PERMITTED
