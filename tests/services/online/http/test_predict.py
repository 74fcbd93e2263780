from __future__ import annotations

import asyncio
import importlib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Manifest
from bundle.tensors import Datatype, TensorSpec
from bundle.verify import VerifiedBundle
from services.online.batching.executor import Answer
from services.online.http.predict import argument_names, make_predict, to_array
from services.online.models.served_model import ServedModel
from services.online.settings import ServerSettings
from services.protocol.priority import Priority


def spec(name: str, dtype: str = "FP32", shape: tuple[int, ...] = (-1, 2)) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype(dtype), shape=shape)


def test_every_tensor_has_a_name_of_its_own() -> None:
    specs = [spec(name) for name in ("x", "a b", "a.b", "1", "class", "self", "ctx")]
    names = argument_names(specs)
    assert names["x"] == "x"
    assert len(set(names.values())) == len(specs)
    assert all(name.isidentifier() for name in names.values())
    assert not {"class", "self", "ctx"} & set(names.values())


def test_lists_are_converted_strictly() -> None:
    assert to_array(spec("x"), [[1, 2.5]]).dtype == np.float32
    for wrong in ([[1]], [["1", "2"]], [[1, 2], [3]], [1, 2], None, "12"):
        with pytest.raises(MlctlError, match="'x'"):
            to_array(spec("x"), wrong)
    with pytest.raises(MlctlError, match="INT64"):
        to_array(spec("x", "INT64"), [[1, 2.5]])


def test_arrays_text_and_half_floats() -> None:
    array = np.ones((1, 2), np.float32)
    assert to_array(spec("x"), array) is array
    assert to_array(spec("t", "BYTES", (-1,)), ["a", "b"]).tolist() == [b"a", b"b"]
    half = to_array(spec("h", "FP16"), [[1, 2]])
    assert half.dtype == np.float16
    with pytest.raises(MlctlError, match="FP16"):
        to_array(spec("h", "FP16"), [[1e6, 0]])


@pytest.fixture
def host(bundle: VerifiedBundle, store_home: Path, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    """A host of a model with a text input and two outputs, which is never started."""
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("_bentoml_sdk")
    document = bundle.manifest.model_dump()
    document["signature"] = {
        "inputs": [
            {"name": "the words", "dtype": "BYTES", "shape": [-1]},
            {"name": "n", "dtype": "INT64", "shape": [-1]},
        ],
        "outputs": [
            {"name": "a.b", "dtype": "FP32", "shape": [-1]},
            {"name": "text", "dtype": "BYTES", "shape": [-1]},
        ],
    }
    odd = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    return ServedModel(odd, ServerSettings(), registry=CollectorRegistry())


def ask(api: Any, **arguments: Any) -> Any:
    given = api.input_spec(**arguments)
    return asyncio.run(api.func(None, **{name: getattr(given, name) for name in arguments}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_text_and_several_outputs(host: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, np.ndarray]] = []
    lanes: list[Priority] = []

    def answer(inputs: dict[str, np.ndarray], *, priority: Priority) -> asyncio.Future[Answer]:
        lanes.append(priority)
        asked.append(inputs)
        future = asyncio.get_running_loop().create_future()
        outputs = {"a.b": np.ones(1, np.float32), "text": np.array([b"yes"], dtype=object)}
        future.set_result(Answer(outputs, 0.0, 0.0, 1))
        return future

    monkeypatch.setattr(host, "infer", answer)
    found = ask(make_predict(host), the_words=["hi"], n=[3])
    assert asked[0]["the words"].tolist() == [b"hi"]
    assert asked[0]["n"].dtype == np.int64
    assert found.a_b.tolist() == [1]
    assert found.text == ["yes"]
    scope = {"type": "http", "path": "/predict", "headers": [(b"mlctl-priority", b"high")]}
    context = SimpleNamespace(request=Request(scope))
    asyncio.run(make_predict(host).func(None, the_words=["hi"], n=[3], ctx=context))
    assert lanes == [Priority.NORMAL, Priority.HIGH]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_errors_become_bentomls_with_our_status(host: ServedModel) -> None:
    from bentoml.exceptions import BentoMLException

    with pytest.raises(BentoMLException, match="INT64") as wrong:
        ask(make_predict(host), the_words=["hi"], n=[1.5])
    assert wrong.value.error_code == 400
    with pytest.raises(BentoMLException, match="starting") as early:
        ask(make_predict(host), the_words=["hi"], n=[1])
    assert early.value.error_code == MlctlError(ErrorCode.UNAVAILABLE, "").spec.http
