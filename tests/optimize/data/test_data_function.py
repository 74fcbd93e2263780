"""Rows that a user's function gives, and its mistakes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import RowLimits, Tensors, load_data, read_rows
from tests.support.eval_rows import Batches, signature

SIGNATURE = signature(2)
MODULE = """
import numpy as np
X = np.arange(80, dtype=np.float32).reshape(40, 2)
Y = np.repeat(np.arange(4), 10)
LIMIT = 3
calls = []

def batches(size=7):
    print("reading")
    for start in range(0, 40, size):
        yield {"x": X[start:start + size], "labels": Y[start:start + size]}

def lists():
    return [{"x": X[:20], "y": Y[:20].tolist()}, {"x": X[20:], "y": Y[20:].tolist()}]

def growing():
    calls.append(1)
    return [{"x": X}] * len(calls)

def shrinking():
    calls.append(1)
    return [{"x": X}] * (9 - len(calls))

def shuffled():
    return [{"x": np.random.default_rng().permutation(X)}]

once = (batch for batch in [{"x": X}])

def used_up():
    return once

def failing():
    yield {"x": X}
    raise OSError("the disk went away\\nand more")

def refusing():
    raise KeyError("token")

def single():
    return {"x": X}

def number():
    return 3

def pairs():
    return [(X, Y)]

def ragged():
    return [{"x": X}, {"x": [[1.0], [1.0, 2.0]]}]

def texts():
    rows = [np.full(1 + row % 4, row, np.float32) for row in range(12)]
    return [{"x": rows[:5]}, {"x": np.array([*rows[5:], None], object)[:-1]}]

def wider():
    return [{"x": X}, {"x": X[:, :1]}]

def uneven():
    return [{"x": X, "y": Y}, {"x": X, "y": Y[1:]}]

def half_labelled():
    return [{"x": X, "y": Y}, {"x": X}]

def mixed_labels():
    return [{"x": X, "y": Y}, {"x": X, "y": Y / 2}]

def doubles():
    return [{"x": X.tolist()}]

def empty():
    return []
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `my_rows` in the working directory, imported anew for each test."""
    (tmp_path / "my_rows.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    (tmp_path / "wrong.py").write_text("def rows(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("my_rows", "broken", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", ["batches", "lists"])
def test_function_source__batches__are_rows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = load_data(f"my_rows:{name}", SIGNATURE)
    arrays: Tensors = {
        "x": np.arange(80, dtype=np.float32).reshape(40, 2),
        "labels": np.repeat(np.arange(4), 10),
    }
    want = read_rows(Batches(arrays, 40), SIGNATURE, RowLimits())
    assert found.sha256 == want.sha256
    np.testing.assert_array_equal(found.held_out.inputs["image"], want.held_out.inputs["image"])
    assert capsys.readouterr().out == ""


def test_function_source__a_file_of_that_name__has_precedence(tmp_path: Path) -> None:
    (tmp_path / "my_rows:batches").write_text("text")
    with pytest.raises(MlctlError, match="is neither an"):
        load_data("my_rows:batches", SIGNATURE)


def test_function_source__rows_of_unequal_length__are_padded() -> None:
    data = load_data("my_rows:texts", signature(-1, name="x"), pad={"x": 0.5})
    rows = data.held_out.inputs["x"]
    assert rows.shape == (9, 4)
    assert sorted((rows == 0.5).sum(axis=1).tolist()) == sorted(3 - int(row[0]) % 4 for row in rows)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:rows", "no module 'no_such_module'"),
        ("my_rows.deeper:rows", "no module 'my_rows.deeper'"),
        ("broken:rows", "importing 'broken' failed: .*No module named 'no_such_library'"),
        ("wrong:rows", "importing 'wrong' failed: SyntaxError"),
        ("my_rows:batch", "has no function 'batch'; did you mean 'batches'"),
        ("my_rows:LIMIT", "'my_rows:LIMIT' is of type int, expected a function"),
        ("my_rows:refusing", "calling 'my_rows:refusing' failed: KeyError: 'token'"),
        ("my_rows:failing", "batch 1 of .* failed: OSError: the disk went away$"),
        ("my_rows:single", "returned a value of type dict, expected batches"),
        ("my_rows:number", "returned a value of type int, expected batches"),
        ("my_rows:pairs", "batch 0 of 'my_rows:pairs' is a value of type tuple, expected a dict"),
        ("my_rows:ragged", r"the rows of 'x' have 1 to 2 values \(in the batch .* row 40\)"),
        ("my_rows:wider", r"expected \[-1, 2\] \(in the batch that starts at row 40\)"),
        ("my_rows:uneven", "different numbers of rows: x 40, y 39 .*starts at row 40"),
        ("my_rows:half_labelled", "some rows have labels and some have none"),
        ("my_rows:mixed_labels", "labels changes from int64 .* to float64"),
        ("my_rows:doubles", "datatype is FP64, expected FP32"),
        ("my_rows:empty", r"has 0 rows \(minimum 8\)"),
        ("my_rows:growing", "'my_rows:growing' gave other rows when it was read again"),
        ("my_rows:shrinking", "gave other rows"),
        ("my_rows:shuffled", "gave other rows"),
        ("my_rows:used_up", "gave other rows"),
    ],
)
def test_function_source__a_mistake__is_named(name: str, reason: str) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        load_data(name, SIGNATURE)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.hint
