"""ONNX files as other libraries write them: the plain graph answers as the file does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from skl2onnx.convert import to_onnx
from sklearn.linear_model import LogisticRegression

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import Signature
from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.checks import check_graph, check_parity, check_source
from mlctl.optimize.proofs.independence import is_row_independent
from mlctl.optimize.proofs.reference import Reference, load_reference
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.registry.onnx_import import read_import
from mlctl.services.model.session import Session, open_session
from tests.support import onnx_models

RNG = np.random.default_rng(23)
FRESH = 1000


def proved(
    model: onnx.ModelProto, folder: Path, inputs: dict[str, np.ndarray], *constants: str
) -> tuple[Reference, Session, Signature]:
    """Import the file, and prove its graph as `mlctl optimize` does."""
    path = folder / "source.onnx"
    onnx.save(model, str(path))
    read = read_import(path, "form", constants=constants)
    onnx.save(read.model, str(path))
    uri = "models:/form/1"
    source = SourceModel(
        "form", "1", uri, "", ModelFormat.ONNX, read.signature, folder, path, "0" * 64
    )
    reference, rows = load_reference(source), Rows(inputs, None)
    check_source(reference, read.signature, rows)
    reference.export(folder, rows.head(3).inputs)
    check_graph(folder / MODEL_NAME, read.signature, None)
    session = open_session(folder / MODEL_NAME)
    check_parity(reference, session, read.signature, rows)
    assert is_row_independent(reference, rows)
    return reference, session, read.signature


def assert_same(reference: Reference, session: Session, inputs: dict[str, np.ndarray]) -> None:
    """Compare 1,000 fresh rows in batches of 1, 7 and 64."""
    for batch in (1, 7, 64):
        for start in range(0, FRESH, batch):
            part = {name: array[start : start + batch] for name, array in inputs.items()}
            want, have = reference.run(part), session.run(part)
            assert have.keys() == want.keys()
            for name, array in want.items():
                np.testing.assert_array_equal(have[name], array)


def test_onnx__weights_as_inputs__answers_as_the_file(tmp_path: Path) -> None:
    x = RNG.standard_normal((FRESH, 4), dtype=np.float32)
    reference, session, signature = proved(onnx_models.weights_as_inputs(), tmp_path, {"x": x[:16]})
    assert [spec.name for spec in signature.inputs] == ["x"]
    assert_same(reference, session, {"x": x})


@pytest.mark.parametrize("names", [[3, 1, 2], ["oslo", "bern", "rome"]])
def test_onnx__zipmap__becomes_scores_in_the_order_of_the_classes(
    tmp_path: Path, names: list[int] | list[str]
) -> None:
    x = RNG.standard_normal((FRESH, 4), dtype=np.float32)
    classes = np.array(names)[np.argmax(x[:, :3], axis=1)]
    estimator = LogisticRegression().fit(x, classes)
    model = to_onnx(estimator, x[:1], target_opset={"": 17, "ai.onnx.ml": 3})
    assert "ZipMap" in {node.op_type for node in model.graph.node}
    reference, session, signature = proved(model, tmp_path, {"X": x[:16]})
    label, scores = signature.outputs
    assert (label.name, scores.shape) == ("output_label", (-1, 3))
    assert_same(reference, session, {"X": x})
    np.testing.assert_allclose(
        session.run({"X": x})[scores.name], estimator.predict_proba(x), atol=1e-5
    )


def test_onnx__zipmap_with_classes_in_another_order__keeps_the_order(tmp_path: Path) -> None:
    model = onnx_models.zipped([7, 3, 5])
    x = RNG.random((FRESH, 3), dtype=np.float32)
    reference, session, _ = proved(model, tmp_path, {"x": x[:16]})
    assert_same(reference, session, {"x": x})
    np.testing.assert_array_equal(session.run({"x": x})["scores"], x)


def test_onnx__an_input_without_dimensions__is_a_constant(tmp_path: Path) -> None:
    x = RNG.standard_normal((FRESH, 4), dtype=np.float32)
    reference, session, _ = proved(
        onnx_models.with_threshold(), tmp_path, {"x": x[:16]}, "limit=0.25"
    )
    assert_same(reference, session, {"x": x})
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, np.float32(0.25)))


@pytest.mark.parametrize("length", [1, 6, 31])
def test_onnx__lstm_and_gru__take_any_length(tmp_path: Path, length: int) -> None:
    steps = RNG.standard_normal((FRESH, 6, 3), dtype=np.float32)
    reference, session, _ = proved(onnx_models.recurrent(), tmp_path, {"x": steps[:16]})
    fresh = RNG.standard_normal((FRESH, length, 3), dtype=np.float32)
    assert_same(reference, session, {"x": fresh})
