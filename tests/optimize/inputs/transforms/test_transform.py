import os
import re
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.inputs.transforms.checks import Tensors
from mlctl.optimize.inputs.transforms.transform import SourceTransform, read_transform
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.settings import ServerSettings
from tests.support.transforms import (
    TOKENIZER,
    make_text_bundle,
    text_signature,
    texts,
    token_signature,
    write_transform,
)

HEAD = "import numpy as np\n"
SAME = "def preprocess(inputs):\n    return inputs\n"
# To a width that depends on the largest value of all rows; the sum does not see the zeros.
PADDING = """
def preprocess(inputs):
    x = inputs["x"]
    return {"x": np.pad(x, ((0, 0), (0, int(x.max()))))}
"""
VECTOR = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, -1)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,)),),
)
ROWS = {"x": np.arange(20, dtype=np.float32).reshape(10, 2)}


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def tokenizer(tmp_path: Path) -> SourceTransform:
    return read_transform(write_transform(tmp_path / "code"), token_signature())


def vector(folder: Path, body: str) -> SourceTransform:
    path = folder / "prepare.py"
    path.write_text(HEAD + body)
    return read_transform(path, VECTOR)


def total(inputs: Tensors) -> dict[str, np.ndarray]:
    return {"y": inputs["x"].sum(axis=1)}


def token_sum(inputs: Tensors) -> dict[str, np.ndarray]:
    return {"sum": (inputs["ids"] * inputs["mask"]).sum(axis=1).astype(np.float32)}


def test_transform__a_folder__is_read_with_its_data(tokenizer: SourceTransform) -> None:
    assert tokenizer.api_signature == text_signature()
    prepared = tokenizer.preprocess(texts("two one", "else"))
    assert prepared["ids"][:, :2].tolist() == [[2, 1], [4, 0]]
    assert prepared["mask"].sum(axis=1).tolist() == [2, 1]
    answer = tokenizer.around(token_sum)(texts("two one", "three three"))
    assert answer["kind"].tolist() == [b"small", b"large"]
    assert answer["total"].tolist() == [1.5, 3.0]


def test_transform__the_evaluated_code__is_the_served_code(
    tokenizer: SourceTransform, tmp_path: Path
) -> None:
    scorer = Scorer.open(make_text_bundle(tmp_path / "bundle"), ServerSettings())
    request = texts("one two three", "else one", "three")
    served, evaluated = scorer.run(request), tokenizer.around(token_sum)(request)
    assert {name: array.tolist() for name, array in served.items()} == {
        name: array.tolist() for name, array in evaluated.items()
    }


def test_transform__no_declarations__has_the_models_tensors(tmp_path: Path) -> None:
    assert vector(tmp_path, SAME).api_signature == VECTOR


def test_transform__datatypes__may_be_those_of_numpy(tmp_path: Path) -> None:
    declared = "INPUTS = {'a': ('uint8', [-1]), 'b': (np.float16, (-1, 3)), 'c': (str, [-1])}\n"
    signature = vector(tmp_path, declared + SAME).api_signature
    assert [spec.dtype for spec in signature.inputs] == [
        Datatype.UINT8, Datatype.FP16, Datatype.BYTES,
    ]  # fmt: skip


def test_transform__the_bundle__gets_the_files_that_were_read(
    tokenizer: SourceTransform, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    (code / "transform.py").write_text("edited while it was in use\n")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    tokenizer.copy_into(bundle)
    copied = {path.name: path.read_text() for path in (bundle / "transform").iterdir()}
    assert copied == {"transform.py": TOKENIZER, "vocab.txt": "one\ntwo\nthree\n"}
    assert tokenizer.manifest_entry().model_signature == token_signature()


def test_transform__an_altered_snapshot__is_rejected(
    tokenizer: SourceTransform, tmp_path: Path
) -> None:
    (tokenizer.root / "vocab.txt").write_text("other\n")
    with pytest.raises(MlctlError) as caught:
        tokenizer.copy_into(tmp_path)
    assert caught.value.code is ErrorCode.FILE_ALTERED
    again = read_transform(tmp_path / "code", token_signature())
    assert (again.root / "vocab.txt").read_text() == "one\ntwo\nthree\n"


def test_transform__hash__covers_names_and_contents(tmp_path: Path) -> None:
    first = read_transform(write_transform(tmp_path / "a"), token_signature())
    second = read_transform(write_transform(tmp_path / "b"), token_signature())
    assert first.sha256 == second.sha256
    (tmp_path / "b" / "more.txt").write_text("")
    assert read_transform(tmp_path / "b", token_signature()).sha256 != first.sha256


def test_transform__hidden_files_and_caches__are_not_copied(tmp_path: Path) -> None:
    code = write_transform(tmp_path / "code")
    for name in (".git/config", "__pycache__/transform.cpython-311.pyc", "data/more.txt"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("x")
    root = read_transform(code, token_signature()).root
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert found == {"transform.py", "vocab.txt", "data/more.txt"}


def test_transform__data_that_is_not_copied__fails_at_once(tmp_path: Path) -> None:
    # Only the file was given, so only the file would have been there when it serves.
    code = write_transform(tmp_path / "code")
    with pytest.raises(MlctlError, match=r"line 9: FileNotFoundError.*vocab\.txt"):
        read_transform(code / "transform.py", token_signature())


def test_transform__prints__stay_off_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "print('load')\ndef preprocess(inputs):\n    print('call')\n    return inputs\n"
    vector(tmp_path, body).preprocess(ROWS)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def preprocess(inputs:\n", "syntax error in line 2"),
        ("import no_such_package\n", "in line 2: ModuleNotFoundError"),
        ("x = 1\n", "neither preprocess nor postprocess"),
        ("INPUTS = [1]\n" + SAME, "INPUTS must be a dict"),
        ("INPUTS = {}\n" + SAME, "INPUTS or OUTPUTS: .*at least 1"),
        ("INPUTS = {'x': 'FP32'}\n" + SAME, r"INPUTS\['x'\] must be \(dtype, shape\)"),
        ("INPUTS = {'x': ('FP31', [-1])}\n" + SAME, r"INPUTS\['x'\]: dtype 'FP31' is unknown"),
        ("INPUTS = {'x': (int, ['a'])}\n" + SAME, r"INPUTS\['x'\]: shape: .*integer"),
        ("INPUTS = {'x': ('FP32', [-2])}\n" + SAME, r"INPUTS\['x'\]: shape: .*-1"),
        ("INPUTS = {'x': (len, [-1])}\n" + SAME, r"INPUTS\['x'\]: dtype .* is unknown"),
        ("INPUTS = {7: ('FP32', [-1])}\n" + SAME, r"INPUTS\[7\]: name: .*string"),
        ("INPUTS = {'x': ('FP32', [4])}\n" + SAME, "the first size of every shape .* must be -1"),
        ("OUTPUTS = {'z': ('FP32', [-1])}\n" + SAME, "OUTPUTS differ.*postprocess is not defined"),
    ],
)
def test_transform__an_invalid_file__is_rejected(tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        vector(tmp_path, body)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_transform__a_missing_path__is_named(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match=r"no transform at .*nowhere"):
        read_transform(tmp_path / "nowhere", VECTOR)
    with pytest.raises(MlctlError, match=r"has no transform\.py"):
        read_transform(tmp_path, VECTOR)


@pytest.fixture
def unsafe(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    code = write_transform(tmp_path / "code")
    match request.param:
        case "link":
            (code / "hosts").symlink_to("/etc/hosts")
        case "pipe":
            os.mkfifo(code / "pipe")
        case "name":
            (code / "a:b.txt").write_text("")
        case "large":
            with (code / "weights.bin").open("wb") as file:
                file.truncate(65 << 20)
        case "many":
            for number in range(256):
                (code / f"{number}.txt").write_text("")
    return code


@pytest.mark.parametrize(
    ("unsafe", "reason"),
    [
        ("link", "hosts is a link"),
        ("pipe", "pipe is a link or a special file"),
        ("name", "'a:b.txt' is rejected"),
        ("large", "more than 256 files or 64 MiB"),
        ("many", "more than 256 files or 64 MiB"),
    ],
    indirect=["unsafe"],
)
def test_transform__an_unsafe_or_large_folder__is_rejected(unsafe: Path, reason: str) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        read_transform(unsafe, token_signature())
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_transform__rows_that_it_rejects__are_named(tokenizer: SourceTransform) -> None:
    with pytest.raises(MlctlError, match="rejects rows of the data: row 1: the text has no words"):
        tokenizer.preprocess(texts("one", ""))


def test_transform__a_defect__is_named_with_its_line(tmp_path: Path) -> None:
    transform = vector(tmp_path, "def preprocess(inputs):\n    return {'x': 1 / 0}\n")
    with pytest.raises(MlctlError, match="preprocess failed in line 3: ZeroDivisionError"):
        transform.preprocess(ROWS)


def test_transform__pure__passes(tokenizer: SourceTransform, tmp_path: Path) -> None:
    tokenizer.check_pure(texts("one", "two three"), token_sum)
    nan = "def postprocess(o):\n    return {'y': o['y'] * np.float32('nan')}\n"
    vector(tmp_path, nan).check_pure(ROWS, total)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "def preprocess(i):\n    i['x'][:] = 0\n    return i\n",
            "preprocess alters its argument 'x'",
        ),
        (
            "def postprocess(o):\n    o['y'][:] = 0\n    return o\n",
            "postprocess alters its argument 'y'",
        ),
        (
            "N = []\ndef preprocess(i):\n    N.append(1)\n    return {'x': i['x'] * len(N)}\n",
            "preprocess returns another 'x' for the same rows",
        ),
        (
            "def postprocess(o):\n    return {'y': np.random.rand(7).astype(np.float32)}\n",
            "postprocess returns another 'y' for the same rows",
        ),
    ],
)
def test_transform__impure__is_rejected(tmp_path: Path, body: str, reason: str) -> None:
    transform = vector(tmp_path, body)
    with pytest.raises(MlctlError, match=reason) as caught:
        transform.check_pure(ROWS, total)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_transform__a_generator__is_judged_by_its_whole_answer(tmp_path: Path) -> None:
    source = """
OUTPUTS = {"parts": ("FP32", [-1, -1])}

def postprocess(outputs):
    for part in (1, 2):
        yield {"parts": outputs["y"][:, None] / np.float32(part)}
"""
    transform = vector(tmp_path, source)
    transform.check_pure(ROWS, total)
    assert transform.is_row_independent(ROWS, total)
    answer = transform.around(total)({"x": np.array([[2, 4]], np.float32)})
    assert answer["parts"].tolist() == [[6, 3]]


@pytest.mark.parametrize(
    ("body", "independent"),
    [
        ("def preprocess(i):\n    return {'x': i['x'] * np.float32(1 / 3)}\n", True),
        ("def preprocess(i):\n    return {'x': i['x'] - i['x'].mean(axis=0)}\n", False),
        ("def postprocess(o):\n    return {'y': o['y'] - o['y'].max()}\n", False),
        (PADDING, True),
    ],
    ids=["by row", "mean of rows", "best of rows", "padding"],
)
def test_transform__dependent_rows__are_found(tmp_path: Path, body: str, independent: bool) -> None:
    assert vector(tmp_path, body).is_row_independent(ROWS, total) is independent


def test_transform__other_output_names__differ(tokenizer: SourceTransform) -> None:
    assert tokenizer.is_row_independent(texts("one", "three two", "else"), token_sum)


def test_transform__no_batch_dimension__has_no_rows(tmp_path: Path) -> None:
    fixed = Signature(
        inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(2, 2)),),
        outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(2,)),),
    )
    (tmp_path / "prepare.py").write_text(SAME)
    transform = read_transform(tmp_path / "prepare.py", fixed)
    rows = {"x": np.ones((2, 2), np.float32)}
    transform.check_pure(rows, total)
    assert not transform.is_row_independent(rows, total)


def test_transform__the_documented_example__works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "transforms.md").read_text()
    block, features, streaming = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "digits.py").write_text(block)
    digits = Signature(
        inputs=(TensorSpec(name="image", dtype=Datatype.FP32, shape=(-1, 1, 8, 8)),),
        outputs=(TensorSpec(name="logits", dtype=Datatype.FP32, shape=(-1, 10)),),
    )

    def run(inputs: Tensors) -> dict[str, np.ndarray]:
        return {"logits": inputs["image"].reshape(-1, 64)[:, :10] * np.float32(5)}

    transform = read_transform(tmp_path / "digits.py", digits)
    images = np.random.default_rng(5).integers(0, 17, (9, 8, 8), dtype=np.uint8)
    transform.check_pure({"image": images}, run)
    assert transform.is_row_independent({"image": images}, run)
    answer = transform.around(run)({"image": images})
    assert answer["digit"].tolist() == images.reshape(-1, 64)[:, :10].argmax(axis=1).tolist()
    with pytest.raises(MlctlError, match="a pixel is brighter than 16"):
        transform.preprocess({"image": images + np.uint8(1)})
    (tmp_path / "users.py").write_text(features)
    users = read_transform(tmp_path / "users.py", VECTOR)
    assert len(users.data_signature.inputs) == 5
    columns = {"amount": 9.5, "age": 31, "average": 12.5}
    row = {name: np.array([value], np.float32) for name, value in columns.items()}
    assert users.preprocess(row)["x"].tolist() == [[9.5, 31.0, 12.5]]
    (tmp_path / "tokens.py").write_text(streaming)
    x = TensorSpec(name="x", dtype=Datatype.INT64, shape=(-1, -1))
    tokens = TensorSpec(name="tokens", dtype=Datatype.INT64, shape=(-1, -1))
    writer = read_transform(tmp_path / "tokens.py", Signature(inputs=(x,), outputs=(tokens,)))
    rows = np.arange(40).reshape(2, 20)
    answer = writer.postprocess({"tokens": rows})
    assert answer["token"].tolist() == rows.tolist()
    assert answer["left"].tolist() == [0, 0]
