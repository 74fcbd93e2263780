"""A graph and its source are asked about probe rows, and what differs is excluded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlctl.bundle.manifest import InputConstraints
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.probes import FLOAT32_MAX, MAX_FEATURES
from mlctl.optimize.proofs.probing import ProbeResult, probe_model
from mlctl.services.model.run_errors import RunError
from tests.support.sessions import FunctionSession

Function = Callable[[Mapping[str, np.ndarray]], np.ndarray]

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="age", dtype=Datatype.FP64, shape=(DYNAMIC,)),
        TensorSpec(name="city", dtype=Datatype.BYTES, shape=(DYNAMIC,)),
        TensorSpec(name="count", dtype=Datatype.INT64, shape=(DYNAMIC,)),
    ),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP64, shape=(DYNAMIC,)),),
)
ROWS = Rows(
    {
        "age": np.linspace(20.0, 60.0, 12),
        "city": np.array([b"Bern", b"Oslo", b"Rome"] * 4, object),
        "count": np.arange(12) % 3,
    },
    None,
)


class Source:
    """The source model: a function of the inputs."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": self._function(inputs)}

    def export(self, directory: Path, example: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError


def graph_with(tmp_path: Path, *texts: str) -> Path:
    """A graph whose constants are these texts."""
    constant = numpy_helper.from_array(np.array(texts, object), "texts")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["texts"], ["y"])],
        "constants",
        [],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [len(texts)])],
        [constant],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "model.onnx"))
    return tmp_path / "model.onnx"


def probed(tmp_path: Path, source: Function, graph: Function, **options: Any) -> ProbeResult:
    session = FunctionSession(lambda inputs: {"y": graph(inputs)})
    file = graph_with(tmp_path, "Lima", "Bern")
    chosen: dict[str, Any] = {"table": True, "independent": True, **options}
    return probe_model(Source(source), session, file, SIGNATURE, (ROWS, ROWS), **chosen)


def age(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(inputs["age"])


@pytest.mark.parametrize("independent", [True, False])
def test_probe_model__equal_answers__exclude_nothing(tmp_path: Path, independent: bool) -> None:
    assert probed(tmp_path, age, age, independent=independent) == ProbeResult()


@pytest.mark.parametrize("independent", [True, False])
def test_probe_model__source_raises__rejects_that_kind_in_that_column(
    tmp_path: Path, independent: bool
) -> None:
    def strict(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if not np.isfinite(age(inputs)).all() or (inputs["count"] < 0).any():
            raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "the model does not run: no such number")
        return age(inputs)

    found = probed(tmp_path, strict, age, independent=independent)
    assert found.constraints == InputConstraints(
        present=("age",),
        limits={"age": (-FLOAT32_MAX, FLOAT32_MAX)},
        ranges={"count": (0, 2**63 - 1)},
    )
    why = "is rejected (the source model rejects it: the model does not run: no such number)."
    assert found.reasons == (
        f"age: a missing value {why}",
        f"age: a number far beyond the data's {why}",
        f"count: a negative number {why}",
    )


def test_probe_model__graph_differs_or_fails__rejects_that_kind(tmp_path: Path) -> None:
    def graph(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if (inputs["count"] > 9).any() or any(b"\t" in text for text in inputs["city"]):
            raise RunError("no kernel for tabs")
        return np.where(inputs["age"] == 0, 5.0, age(inputs))

    found = probed(tmp_path, age, graph)
    assert found.constraints == InputConstraints(
        nonzero=("age",),
        forbidden_characters={"city": "\t"},
        ranges={"count": (-(2**63), 2)},
    )
    assert "age: the value 0 is rejected (y: wanted 0., got 5.)." in found.reasons
    assert any("the graph does not run: no kernel for tabs" in each for each in found.reasons)


def test_probe_model__unseen_category__lists_those_of_data_and_graph_that_are_right(
    tmp_path: Path,
) -> None:
    known = {b"Bern", b"Oslo", b"Lima"}

    def source(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if not {*inputs["city"]} <= {*known, b"Rome", b""}:
            raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "unknown category")
        return age(inputs)

    def graph(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        wrong = np.array([city == b"Lima" for city in inputs["city"]])
        return np.where(wrong, 0.0, age(inputs))

    with pytest.raises(MlctlError, match="the smallest"):
        # A value of the data itself differs: nothing can exclude it.
        probed(tmp_path, age, lambda inputs: np.where(age(inputs) == 60.0, 0.0, age(inputs)))
    found = probed(tmp_path, source, graph)
    assert found.constraints == InputConstraints(categories={"city": ("Bern", "Oslo", "Rome")})


@pytest.mark.parametrize("width", [2, MAX_FEATURES + 1])
def test_probe_model__categories_in_a_matrix__are_listed_for_each_column(
    tmp_path: Path, width: int
) -> None:
    matrix = TensorSpec(name="x", dtype=Datatype.FP64, shape=(DYNAMIC, width))
    signature = Signature(inputs=(matrix,), outputs=SIGNATURE.outputs)
    first = 10.0 * np.arange(width)
    rows = Rows({"x": first + np.arange(12)[:, None] % 3}, None)

    def source(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if not np.isin(inputs["x"] - first, [0, 1, 2]).all():
            raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "unknown category")
        return np.asarray(inputs["x"].sum(axis=1))

    session = FunctionSession(lambda inputs: {"y": inputs["x"].sum(axis=1)})
    file, data = graph_with(tmp_path, "a"), (rows, rows)
    found = probe_model(
        Source(source), session, file, signature, data, table=True, independent=True
    )
    assert found.constraints.categories == {
        f"x[{column}]": (value, value + 1, value + 2) for column, value in enumerate(first)
    }


def test_probe_model__numbers_whose_answer_overflows__stay_below_the_next_size(
    tmp_path: Path,
) -> None:
    def square(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.square(age(inputs).astype(np.float32)).astype(np.float64)

    found = probed(tmp_path, square, square)
    assert found.constraints == InputConstraints(limits={"age": (-1e18, 1e18)})
    assert any("answers with NaN or infinity" in each for each in found.reasons)


def test_probe_model__whole_numbers_whose_answer_overflows__have_a_range(tmp_path: Path) -> None:
    def power(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp2(inputs["count"] / 1000.0)

    found = probed(tmp_path, power, power)
    # A large negative number gives 0, which is right.
    assert found.constraints == InputConstraints(ranges={"count": (-(2**63), 10**6)})


@pytest.mark.parametrize("dtype", [Datatype.FP64, Datatype.INT64])
def test_probe_model__wide_matrix_whose_answer_overflows__keeps_the_data_of_every_column(
    tmp_path: Path, dtype: Datatype
) -> None:
    spec = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, MAX_FEATURES + 6))
    signature = Signature(inputs=(spec,), outputs=SIGNATURE.outputs)
    scales = 1 + np.arange(MAX_FEATURES + 6) % 7
    given = (np.arange(12)[:, None] % 3 * scales).astype(dtype.numpy_name)
    rows = Rows({"x": given}, None)

    def power(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(inputs["x"].sum(axis=1) / 10.0))

    session = FunctionSession(lambda inputs: {"y": power(inputs)})
    found = probe_model(
        *(Source(power), session, graph_with(tmp_path, "a"), signature, (rows, rows)),
        table=True,
        independent=True,
    )
    limits = found.constraints.limits or found.constraints.ranges
    assert limits["x"][1] == 14


def test_probe_model__tensor_whose_answer_overflows__is_limited_below_the_largest_numbers(
    tmp_path: Path,
) -> None:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2, 2))
    signature = Signature(inputs=(spec,), outputs=SIGNATURE.outputs)
    rows = Rows({"x": np.linspace(1, 2, 48, dtype=np.float32).reshape(12, 2, 2)}, None)

    def total(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(inputs["x"].sum(axis=(1, 2)), np.float64)

    session = FunctionSession(lambda inputs: {"y": total(inputs)})
    file, data = graph_with(tmp_path, "a"), (rows, rows)
    found = probe_model(
        Source(total), session, file, signature, data, table=False, independent=True
    )
    assert found.constraints == InputConstraints(limits={"x": (-1e30, 1e30)})
    infinite = Rows({"x": np.where(rows.inputs["x"] > 1.9, np.inf, rows.inputs["x"])}, None)
    found = probe_model(
        Source(total),
        session,
        *(file, signature, (rows, infinite)),
        table=False,
        independent=True,
    )
    assert found == ProbeResult()


def test_probe_model__free_text_whose_answer_differs__is_rejected(tmp_path: Path) -> None:
    texts = np.array([f"text number {number}".encode() for number in range(12)], object)
    rows = Rows({**ROWS.inputs, "city": texts}, None)

    def graph(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        new = np.array([not city.startswith(b"text") for city in inputs["city"]])
        return np.where(new, 0.0, age(inputs))

    session = FunctionSession(lambda inputs: {"y": graph(inputs)})
    few = rows.take(np.arange(2))
    with pytest.raises(MlctlError, match="'city', a value that is not among the data's"):
        probe_model(
            *(Source(age), session, graph_with(tmp_path, "a"), SIGNATURE, (rows, few)),
            table=True,
            independent=True,
        )


def test_probe_model__rows_of_the_data_would_be_excluded__is_rejected(tmp_path: Path) -> None:
    gap = np.array([np.nan, *ROWS.inputs["age"][1:]])
    rows = Rows({**ROWS.inputs, "age": gap, "count": np.arange(12) % 3 + 1}, None)

    def graph(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        # A gap is answered rightly in the first row of the data only.
        filled = np.where(np.isnan(age(inputs)), 1.0 * (inputs["count"] != 1), age(inputs))
        return np.asarray(filled)

    def source(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(np.nan_to_num(age(inputs), nan=0.0))

    session = FunctionSession(lambda inputs: {"y": graph(inputs)})
    with pytest.raises(MlctlError, match=r"'age' has a missing value.* rows of the data have it"):
        probe_model(
            *(Source(source), session, graph_with(tmp_path, "a"), SIGNATURE, (rows, rows)),
            table=True,
            independent=True,
        )


def test_probe_result__added_to__merges_with_the_graphs_own_constraints() -> None:
    probes = ProbeResult(
        constraints=InputConstraints(
            present=("age", "city"), nonzero=("count",), ranges={"count": (0, 2**63 - 1)}
        )
    )
    own = InputConstraints(
        ranges={"count": (-8, 7)}, nullable=("age", "city", "size"), optional=("city",)
    )
    assert probes.added_to(own) == InputConstraints(
        ranges={"count": (0, 7)},
        nullable=("size",),
        present=("age", "city"),
        nonzero=("count",),
    )
    alone = probes.added_to(InputConstraints())
    assert alone.ranges == {"count": (0, 2**63 - 1)}


def test_probe_model__wide_table_that_rejects_gaps__is_asked_few_times(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(150)]
    inputs = tuple(TensorSpec(name=each, dtype=Datatype.FP32, shape=(DYNAMIC,)) for each in names)
    rows = Rows({name: np.linspace(0, 1, 12, dtype=np.float32) for name in names}, None)
    calls = []

    def source(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        calls.append(len(inputs["c0"]))
        if not all(np.isfinite(array).all() for array in inputs.values()):
            raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "no such number")
        return inputs["c0"].astype(np.float64)

    session = FunctionSession(lambda inputs: {"y": inputs["c0"].astype(np.float64)})
    signature = Signature(inputs=inputs, outputs=SIGNATURE.outputs)
    found = probe_model(
        *(Source(source), session, graph_with(tmp_path, "a"), signature, (rows, rows)),
        table=True,
        independent=True,
    )
    assert set(found.constraints.present) == set(names)
    assert set(found.constraints.limits) == set(names)
    assert len(calls) < 300  # and not 450: three kinds in each column
