"""A kind of value that is excluded is a bad row with its own sentence, whatever asks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory

from mlctl.bundle.manifest import InputConstraints
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.typed.descriptors import make_file
from mlctl.services.online.grpc.typed.layout import lay_out
from mlctl.services.online.openapi.model import describe
from mlctl.services.protocol.messages import SERVICE, methods
from tests.outside.case import Row
from tests.outside.paths import Rejected, batch, online, stream
from tests.services.online.grpc.test_server import details_of, refused, with_channel
from tests.support.bundles import make_table_bundle

GOOD: Row = {"age": 30.0, "income": 0.5}
# An excluded row and a pattern of what is said of it.
EXCLUDED = (
    (
        {**GOOD, "age": None},
        "'age'( has a missing value, which the model does not take| is null|: null is not of)",
    ),
    ({**GOOD, "age": 1e38}, r"'age' has the value 1e\+38, expected 0 to 100"),
    ({**GOOD, "income": 7.5}, "'income' has the value 7.5, which is none of the categories that"),
)
ROWS = [GOOD, *(row for row, _ in EXCLUDED), GOOD]


@pytest.fixture(scope="module")
def excluding(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    constraints = InputConstraints(
        present=("age",),
        limits={"age": (0.0, 100.0)},
        categories={"income": tuple(number / 8 for number in range(8))},
    )
    return make_table_bundle(tmp_path_factory.mktemp("excluding") / "b", constraints=constraints)


def answers(bundle: VerifiedBundle) -> Iterator[tuple[str, list[Any]]]:
    yield from online(bundle, ROWS, 1).items()
    yield "batch", batch(bundle, ROWS)
    yield "stream", stream(bundle, ROWS)


def test_excluded_values__http_batch_and_stream__are_bad_rows_with_their_sentences(
    excluding: VerifiedBundle,
) -> None:
    for path, found in answers(excluding):
        assert (found[0]["y"], found[-1]["y"]) == (30000.5, 30000.5), path
        for (_, sentence), bad in zip(EXCLUDED, found[1:-1], strict=True):
            assert isinstance(bad, Rejected), (path, bad)
            assert re.search(sentence, bad.reason), path


def values(row: Row) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in row.items()}


def v2_request(row: Row) -> Any:
    message = methods()["ModelInfer"].request(model_name="table")
    for name, value in values(row).items():
        message.inputs.add(name=name, datatype="FP64", shape=[1])
        message.raw_input_contents.append(np.array([value]).tobytes())
    return message


def test_excluded_values__grpc__are_invalid_arguments_with_their_sentences(
    excluding: VerifiedBundle,
) -> None:
    manifest = excluding.manifest
    layout = lay_out(describe(manifest.name, excluding.digest, manifest.signature))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(make_file(layout).SerializeToString())
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{layout.package}.{name}"))
        for name in ("Request", "Response")
    )

    async def use(channel: grpc.aio.Channel, *_: Any) -> None:
        v2: Any = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda row: v2_request(row).SerializeToString(),
            response_deserializer=methods()["ModelInfer"].response.FromString,
        )
        typed: Any = channel.unary_unary(
            f"/{layout.package}.Predictor/Predict",
            request_serializer=lambda row: request(
                **{name: [value] for name, value in values(row).items()}
            ).SerializeToString(),
            response_deserializer=response.FromString,
        )
        assert list((await typed(GOOD, timeout=20)).y) == [30000.5]
        assert np.frombuffer((await v2(GOOD, timeout=20)).raw_output_contents[0]) == [30000.5]
        for call in (v2, typed):
            for row, sentence in EXCLUDED:
                wrong = await refused(call(row, timeout=20))
                assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert re.search(sentence, str(wrong.details()))
                assert details_of(wrong)[0].reason == "INVALID_INPUT"

    with_channel(excluding, use)
