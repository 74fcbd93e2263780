"""The description of a server: valid, the one that it answers with, and true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlctl.bento.clients.languages import openapi_files
from mlctl.bundle.tensors import Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.online.openapi.document import document
from mlctl.services.online.openapi.model import describe
from mlctl.services.online.openapi.schemas import request_schema
from mlctl.services.protocol.codec import V2Codec
from tests.bento.clients.models import DIGEST, every_datatype, odd
from tests.support.serving import Server

MODEL = describe("every", DIGEST, every_datatype())
# A caller's timeout may be a microsecond. A shape does not tie the number of values in a schema, so
# what fits it may still be wrong.
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 404, 413, 415]
"""


def require_valid(document: dict[str, Any]) -> None:
    # Its import compiles grammars for a second, which not every process of a run should do.
    from openapi_spec_validator import validate

    validate(document)


def tried(path: Path, url: str, *options: str) -> None:
    """Run schemathesis on a document, with the same examples each time."""
    path.with_name("schemathesis.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", path.name, "--url", url]
    command += ["--generation-deterministic", "--phases", "coverage,fuzzing", "--no-color"]
    command += ["--request-timeout", "20", "--warnings", "off", "--suppress-health-check", "all"]
    done = subprocess.run(
        [*command, *options], check=False, cwd=path.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout


def test_document__several_models__is_valid() -> None:
    made = document([MODEL, odd(), describe("every.", DIGEST, every_datatype())])
    require_valid(made)
    kinds = set(made["components"]["schemas"])
    assert {"EveryRequest", "Every2Request", "Model3dOddNetOfALongNameAndStRequest"} <= kinds
    assert made["paths"]["/v2/models/every."]["get"]["operationId"] == "every_2Metadata"


@pytest.mark.parametrize(
    ("token", "all_of_it", "probes"),
    [(None, [{"token": []}, {}], [{}]), (True, [{"token": []}], [{}]), (False, None, None)],
)
def test_document__server_with_tokens__requires_one(
    token: bool | None, all_of_it: object, probes: object
) -> None:
    made = document([MODEL], token=token)
    assert made.get("security") == all_of_it
    assert made["paths"]["/v2/health/live"]["get"].get("security") == probes
    assert bool(made["components"]["securitySchemes"]) is (token is not False)


def test_openapi_files__same_model_twice__are_the_same() -> None:
    assert openapi_files(MODEL) == openapi_files(MODEL)
    (text,) = openapi_files(MODEL).values()
    assert json.loads(text)["info"]["version"] == DIGEST


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        (Datatype.INT8, -128, 127),
        (Datatype.UINT64, 0, 2**64 - 1),
        (Datatype.FP16, -65504.0, 65504.0),
        (Datatype.FP64, None, None),
    ],
)
def test_schema__each_datatype__has_its_range(
    dtype: Datatype, least: float | None, most: float | None
) -> None:
    spec = TensorSpec(name="x", dtype=dtype, shape=(-1,))
    model = describe("m", DIGEST, Signature(inputs=(spec,), outputs=(spec,)))
    schema = request_schema(model.inputs, model.outputs)
    plain: Any = schema["properties"]["inputs"]["items"]["anyOf"][0]
    items = plain["properties"]["data"]["anyOf"][0]["items"]
    assert (items.get("minimum"), items.get("maximum")) == (least, most)


@pytest.mark.parametrize(
    ("dtype", "shapes", "smallest"),
    [
        (Datatype.FP32, [(-1, 4)], 0),
        (Datatype.FP32, [(4,)], 0),
        (Datatype.FP32, [(-1, -1)], 1),
        (Datatype.FP32, [(-1,), (-1,)], 1),
        (Datatype.BYTES, [(-1,)], 1),
    ],
)
def test_document__header_length_of_zero__only_where_the_server_takes_it(
    dtype: Datatype, shapes: list[tuple[int, ...]], smallest: int
) -> None:
    specs = tuple(
        TensorSpec(name=f"x{number}", dtype=dtype, shape=shape)
        for number, shape in enumerate(shapes)
    )
    signature = Signature(inputs=specs, outputs=specs)
    made = document([describe("m", DIGEST, signature)])
    for verb in ("infer", "infer_stream"):
        (header, *_) = made["paths"][f"/v2/models/m/{verb}"]["post"]["parameters"]
        assert header["name"] == "Inference-Header-Content-Length"
        assert header["schema"]["minimum"] == smallest
    taken = True
    try:
        V2Codec("m", "v", signature).decode(bytes(16), 0)
    except MlctlError:
        taken = False
    assert taken is (smallest == 0)


def test_schema__null_and_columns_of_n_1__are_valid() -> None:
    specs = (TensorSpec(name="x", dtype=Datatype.FP64, shape=(-1,)),)
    model = describe("m", DIGEST, Signature(inputs=specs, outputs=specs))
    schema = request_schema(model.inputs, model.outputs)
    column = {"name": "x", "datatype": "FP64", "shape": [2, 1]}
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    valid = Draft202012Validator(schema).is_valid
    for data in ([1, 2], [[1], [2]]):
        tensor = {**column, "parameters": None, "data": data}
        request = {"id": None, "parameters": None, "outputs": None, "inputs": [tensor]}
        assert valid(request)
    assert valid({"inputs": [{**column, "data": None, "parameters": {"binary_data_size": 16}}]})
    assert not valid({"inputs": [{**column, "shape": [1, 2], "data": [1, 2]}]})
    assert not valid({"inputs": [{**column, "data": [[1, 2]]}]})


def test_document__model_of_columns__describes_records() -> None:
    inputs = tuple(
        TensorSpec(name=name, dtype=dtype, shape=(-1,))
        for name, dtype in (("the age", Datatype.FP64), ("city", Datatype.BYTES))
    )
    signature = Signature(inputs=inputs, outputs=inputs[:1])
    made = document(
        [
            describe(
                "churn",
                DIGEST,
                signature,
                MissingValues(frozenset({"the age", "city"}), frozenset({"city"})),
            )
        ]
    )
    require_valid(made)
    assert "post" in made["paths"]["/predict"]
    row = made["components"]["schemas"]["ChurnRows"]["items"]
    assert row["required"] == ["the age"]
    tensors = made["components"]["schemas"]["ChurnRequest"]["properties"]["inputs"]
    assert (tensors["minItems"], tensors["maxItems"]) == (1, 2)
    assert tensors["allOf"] == [{"contains": {"properties": {"name": {"const": "the age"}}}}]
    assert row["properties"] == {
        "the age": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "city": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    assert "/predict" not in document([MODEL])["paths"]


@pytest.mark.slow
def test_server__requests_from_its_document__are_answered_as_documented(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "all.json").write_text(httpx.get(f"{server.url}/openapi.json").text)
    # With a header that makes the JSON mean something else, what breaks the schema may be right.
    tried(
        tmp_path / "all.json", server.url, "--max-examples", "4",
        "--exclude-checks", "negative_data_rejection,positive_data_acceptance",
        "--exclude-path-regex", "versions/[^/]+/.",
    )  # fmt: skip


@pytest.mark.slow
def test_server__json_that_violates_the_schema__is_rejected(server: Server, tmp_path: Path) -> None:
    made = json.loads(httpx.get(f"{server.url}/openapi.json").text)
    path = "/v2/models/tiny/infer"
    operation = made["paths"][path]["post"]
    del operation["requestBody"]["content"]["application/octet-stream"]
    operation["parameters"] = [
        each
        for each in operation["parameters"]
        if each["name"] != "Inference-Header-Content-Length"
    ]
    made["paths"] = {path: made["paths"][path]}
    (tmp_path / "json.json").write_text(json.dumps(made))
    tried(tmp_path / "json.json", server.url, "--max-examples", "30")
