import asyncio
import logging
import os
import py_compile
import sys
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.transform import Transform, TransformError, load_module, load_transform
from mlctl.services.model.warmup import check_golden
from mlctl.services.online.batching.executor import Answer, BatchExecutor
from mlctl.services.online.batching.scheduler import Limits
from mlctl.services.online.metrics.counts import BatchStats
from mlctl.services.online.settings import ServerSettings
from tests.support.transforms import (
    TOKENIZER,
    make_text_bundle,
    text_signature,
    texts,
    token_signature,
    write_transform,
)

VECTOR = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, 2)),),
)
ROWS = {"x": np.ones((3, 2), np.float32)}
HEAD = "import numpy as np\n"


@pytest.fixture(scope="module")
def text_bundle(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_text_bundle(tmp_path_factory.mktemp("texts") / "bundle")


@pytest.fixture(scope="module")
def scorer(text_bundle: VerifiedBundle) -> Scorer:
    return Scorer.open(text_bundle, ServerSettings())


def vector_transform(folder: Path, body: str) -> Transform:
    path = folder / "transform.py"
    path.write_text(HEAD + body)
    return Transform(load_module(path, f"test_{folder.name}"), VECTOR, VECTOR)


def test_transform__text__is_converted_both_ways(scorer: Scorer) -> None:
    request = texts("one two", "three one", "two elsewhere")
    assert scorer.check(request) == 3
    answer = scorer.run(request)
    assert answer["kind"].tolist() == [b"small", b"large", b"large"]
    assert answer["total"].tolist() == [1.5, 2.0, 3.0]


def test_check_golden__with_a_transform__uses_the_clients_form(
    scorer: Scorer, text_bundle: VerifiedBundle
) -> None:
    assert check_golden(scorer, text_bundle)["text"].tolist() == [b"one", b"two three"]


def test_transform__more_rows_than_a_batch__keeps_their_order(scorer: Scorer) -> None:
    words = ["one", "two", "three"] * 7
    assert len(words) > 2 * scorer.max_rows
    totals = scorer.run(texts(*words))["total"]
    assert totals.tolist() == [0.5, 1.0, 1.5] * 7


def test_transform__rejects_a_row__message_has_its_number(scorer: Scorer) -> None:
    words = ["one"] * 20
    words[17] = "  "
    with pytest.raises(MlctlError) as caught:
        scorer.run(texts(*words))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.message == "row 17: the text has no words"


def test_transform__undecodable_text__is_invalid_input(scorer: Scorer) -> None:
    with pytest.raises(MlctlError, match="can't decode") as caught:
        scorer.run({"text": np.array([b"\xff"], dtype=object)})
    assert caught.value.code is ErrorCode.INVALID_INPUT


class _NoMeter:
    def batch(self, stats: BatchStats) -> None: ...

    def first_piece(self, seconds: float) -> None: ...

    def queue_rows(self, rows: int) -> None: ...


async def ask_together(scorer: Scorer, *requests: str) -> list[Answer | BaseException]:
    batching = BatchExecutor(scorer, Limits(8, 100), SystemClock(), _NoMeter())
    try:
        futures = [batching.submit(texts(request), 30.0) for request in requests]
        return await asyncio.gather(*futures, return_exceptions=True)
    finally:
        await batching.drain()
        batching.close()


async def _batch_of_three(scorer: Scorer) -> None:
    good, bad, other = await ask_together(scorer, "one", "", "two")
    assert isinstance(bad, MlctlError)
    assert bad.message == "row 0: the text has no words"
    assert isinstance(good, Answer)
    assert isinstance(other, Answer)
    assert good.outputs["total"].tolist() == [0.5]
    assert other.outputs["total"].tolist() == [1.0]
    assert good.batch_rows == 3


def test_transform__one_bad_request_in_a_batch__fails_alone(scorer: Scorer) -> None:
    asyncio.run(_batch_of_three(scorer))


def test_transform__defect__is_logged_and_hidden_from_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = TOKENIZER.replace("NUMBERS.get(word, len(WORDS) + 1)", "NUMBERS[word]")
    defective = Scorer.open(make_text_bundle(tmp_path / "bundle", broken), ServerSettings())
    with caplog.at_level(logging.ERROR, logger="mlctl"):
        (answer,) = asyncio.run(ask_together(defective, "secret"))
    assert isinstance(answer, MlctlError)
    assert answer.code is ErrorCode.INTERNAL
    assert answer.message == "the transform of model 'texts' failed on these inputs"
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "NUMBERS[word]" in text)
    assert f"preprocess failed in line {line}: KeyError: 'secret'" in caplog.text


def test_transform__loaded__leaves_the_bundle_unchanged(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    before = list(sys.path)
    Scorer.open(bundle, ServerSettings()).run(texts("one"))
    assert verify(bundle.root).digest == bundle.digest
    assert sys.path == before
    assert "transform" not in sys.modules


def test_load_module__planted_bytecode__is_not_run(tmp_path: Path) -> None:
    path = write_transform(tmp_path, "VALUE = 'cached'\n") / "transform.py"
    py_compile.compile(str(path))
    status = path.stat()
    path.write_text("VALUE = 'source'\n")
    # Of the same size and time, so that Python's own import would take the cache.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load_module(path, "planted").VALUE == "source"


def test_transform__two_bundles__are_independent(tmp_path: Path) -> None:
    halves = make_text_bundle(tmp_path / "a")
    doubles = make_text_bundle(tmp_path / "b", TOKENIZER.replace("0.5", "2"))
    first, second = (Scorer.open(bundle, ServerSettings()) for bundle in (halves, doubles))
    assert first.run(texts("two"))["total"].tolist() == [1.0]
    assert second.run(texts("two"))["total"].tolist() == [4.0]
    assert first.run(texts("two"))["total"].tolist() == [1.0]


def test_load_transform__none_in_the_bundle__is_none(bundle: VerifiedBundle) -> None:
    assert load_transform(bundle) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def preprocess(inputs:\n", r"syntax error in line 1"),
        ("import json\nimport no_such_package\n", r"in line 2: ModuleNotFoundError.*no_such_pack"),
        ("raise SystemExit(3)\n", "in line 1: SystemExit: 3"),
        ("preprocess = 7\n", "preprocess is not a function"),
        ("INPUTS = {}\n", "neither preprocess nor postprocess"),
        ("def postprocess(outputs): ...\n", "INPUTS differ.*preprocess is not defined"),
        ("def preprocess(inputs): ...\n", "OUTPUTS differ.*postprocess is not defined"),
    ],
)
def test_transform__cannot_be_loaded__is_rejected_at_start(
    tmp_path: Path, source: str, reason: str
) -> None:
    bundle = make_text_bundle(tmp_path / "bundle", source)
    with pytest.raises(MlctlError, match=rf"transform/transform\.py.*{reason}") as caught:
        Scorer.open(bundle, ServerSettings())
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "preprocess: it returned NoneType, expected a dict"),
        ("return {'z': inputs['x']}", r"preprocess: .*\['z'\], expected \['x'\]"),
        ("return {**inputs, 'z': inputs['x']}", r"\['x', 'z'\], expected \['x'\]"),
        ("return {'x': inputs['x'].tolist()}", "'x': it is a list, expected an array"),
        ("return {'x': inputs['x'].astype(float)}", "'x': dtype is float64, expected float32"),
        ("return {'x': inputs['x'][:, :1]}", r"'x': shape is \[3, 1\], expected \[-1, 2\]"),
        ("return {'x': inputs['x'][1:]}", "'x': it has 2 rows, expected 3"),
        ("return {'x': inputs['nope']}", "preprocess failed in line 3: KeyError: 'nope'"),
        ("raise SystemExit", "preprocess failed in line 3: SystemExit"),
    ],
)
def test_transform__wrong_result__names_function_and_tensor(
    tmp_path: Path, body: str, reason: str
) -> None:
    transform = vector_transform(tmp_path, f"def preprocess(inputs):\n    {body}\n")
    with pytest.raises(TransformError, match=reason):
        transform.preprocess(ROWS)


def test_postprocess__text_that_is_no_bytes__is_rejected(tmp_path: Path) -> None:
    source = "import numpy as np\ndef preprocess(inputs): ...\ndef postprocess(outputs):\n"
    source += "    words = np.array(['a'] * 2, dtype=object)\n"
    source += "    return {'kind': words, 'total': outputs['sum']}\n"
    path = write_transform(tmp_path, source) / "transform.py"
    transform = Transform(load_module(path, "words"), text_signature(), token_signature())
    with pytest.raises(TransformError, match="postprocess: tensor 'kind': an element is not bytes"):
        transform.postprocess({"sum": np.ones(2, np.float32)})


def test_postprocess__value_error__is_a_defect(tmp_path: Path) -> None:
    transform = vector_transform(tmp_path, "def postprocess(o):\n    raise ValueError('no')\n")
    with pytest.raises(TransformError, match="postprocess failed in line 3: ValueError: no"):
        transform.postprocess({"y": ROWS["x"]})


def test_transform__function_is_not_defined__changes_nothing(tmp_path: Path) -> None:
    transform = vector_transform(tmp_path, "def preprocess(inputs):\n    return inputs\n")
    outputs = {"y": ROWS["x"]}
    assert transform.postprocess(outputs) == outputs


def test_preprocess__arrays__are_read_only(tmp_path: Path) -> None:
    body = "def preprocess(inputs):\n    inputs['x'][:] = 0\n    return inputs\n"
    transform = vector_transform(tmp_path, body)
    given = {"x": np.ones((2, 2), np.float32)}
    with pytest.raises(MlctlError, match="read-only"):
        transform.preprocess(given)
    assert given["x"].all()
    given["x"][:] = 2  # the caller's own array stays writeable


def test_transform__dataclass_in_it__works(tmp_path: Path) -> None:
    body = (
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Scale:\n    by: 'float' = 2.0\n"
        "def preprocess(inputs):\n    return {'x': inputs['x'] * np.float32(Scale().by)}\n"
    )
    result = vector_transform(tmp_path, body).preprocess(ROWS)
    assert result["x"].tolist() == [[2.0, 2.0]] * 3


def test_preprocess__transposed_result__is_in_the_right_order(tmp_path: Path) -> None:
    # A view whose memory is in another order than its elements.
    turned = TOKENIZER.replace('{"ids": ids,', '{"ids": np.asfortranarray(ids),')
    scorer = Scorer.open(make_text_bundle(tmp_path / "bundle", turned), ServerSettings())
    assert scorer.run(texts("one two", "three"))["total"].tolist() == [1.5, 1.5]


TOKENS = Signature(
    inputs=VECTOR.inputs,
    outputs=(
        TensorSpec(name="token", dtype=Datatype.FP32, shape=(-1, -1)),
        TensorSpec(name="left", dtype=Datatype.INT64, shape=(-1,)),
    ),
)
YIELDING = """
def postprocess(outputs):
    buffer = np.empty((len(outputs["y"]), 1), np.float32)
    for column in range(2):
        buffer[:] = outputs["y"][:, column : column + 1]
        yield {"token": buffer, "left": np.full(len(buffer), 1 - column)}
"""


def yielding_transform(folder: Path, body: str) -> Transform:
    path = folder / "transform.py"
    path.write_text(HEAD + body)
    return Transform(load_module(path, f"test_{folder.name}"), TOKENS, VECTOR)


def test_postprocess__yields_parts__equal_the_whole_answer(tmp_path: Path) -> None:
    transform = yielding_transform(tmp_path, YIELDING)
    outputs = {"y": np.array([[1, 2], [3, 4]], np.float32)}
    pieces = list(transform.pieces(outputs))  # the same array is filled again for each
    assert [piece["token"].tolist() for piece in pieces] == [[[1], [3]], [[2], [4]]]
    whole = transform.postprocess(outputs)
    assert whole["token"].tolist() == [[1, 2], [3, 4]]
    assert whole["left"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if False:\n        yield", "postprocess: it yielded nothing"),
        ("yield", "postprocess: it returned NoneType, expected a dict"),
        ("yield {'token': outputs['y']}", r"it returned the tensors \['token'\], expected"),
        ("raise KeyError('a')\n    yield", "postprocess failed in line 3: KeyError: 'a'"),
    ],
)
def test_postprocess__invalid_part__is_rejected_with_the_reason(
    tmp_path: Path, body: str, reason: str
) -> None:
    transform = yielding_transform(tmp_path, f"def postprocess(outputs):\n    {body}\n")
    with pytest.raises(TransformError, match=reason):
        transform.postprocess({"y": np.ones((3, 2), np.float32)})


def test_preprocess__yields__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="only postprocess may yield"):
        vector_transform(tmp_path, "def preprocess(inputs):\n    yield inputs\n")
