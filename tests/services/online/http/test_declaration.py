from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.http.declaration import argument_names, declare_predict


def test_argument_names__any_tensor_names__are_distinct_identifiers() -> None:
    texts = ("x", "a b", "a.b", "1", "class", "self", "ctx")
    specs = [TensorSpec(name=text, dtype=Datatype.FP32, shape=(-1, 2)) for text in texts]
    names = argument_names(specs)
    assert names["x"] == "x"
    assert len(set(names.values())) == len(specs)
    assert all(name.isidentifier() for name in names.values())
    assert not {"class", "self", "ctx"} & set(names.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_declare_predict__text_and_numbers__bentoml_describes_the_arguments(
    bundle: VerifiedBundle, store_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
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
    api = declare_predict(odd)
    assert set(api.input_spec.model_fields) == {"the_words", "n"}
    properties = api.input_spec.model_json_schema()["properties"]
    assert properties["n"]["dtype"] == "int64"
    assert properties["the_words"]["type"] == "array"
    assert set(api.output_spec.model_fields) == {"a_b", "text"}
