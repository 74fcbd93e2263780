from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest

from mlctl.bundle.verify import verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file
from mlctl.optimize.events import Stage, StepEvent, StepStatus
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import NothingPassedError, OptimizeResult, optimize
from mlctl.optimize.recipes.base import Details, Precision, Target, Workbench, save_graph
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.services.model.golden import load_golden
from mlctl.services.model.session import open_session
from tests.optimize.conftest import ROWS, images, vectors
from tests.support.sources import save_rows
from tests.support.torch_models import CLASSES

pytestmark = pytest.mark.slow

ALL = [recipe.name for recipe in select(None, Target.CPU)]
FP32 = select(["fp32"], Target.CPU)


@dataclass
class Recorder:
    """A progress that remembers."""

    events: list[StepEvent] = field(default_factory=list)

    def event(self, event: StepEvent) -> None:
        self.events.append(event)

    def statuses(self, stage: Stage) -> list[StepStatus]:
        return [event.status for event in self.events if event.stage is stage]


@pytest.fixture
def digits_data(tmp_path: Path, catalog: MlflowCatalog) -> Path:
    """Rows of the digits model, labelled with its own answers, so that its accuracy is 1."""
    from mlctl.optimize.proofs.reference import load_reference

    reference = load_reference(catalog.resolve("Digits"))
    labels = reference.run({"x": images()})["logits"].argmax(axis=1)
    return save_rows(tmp_path / "eval.npz", {"x": images(), "labels": labels})


def run(
    uri: str, data: Path, catalog: MlflowCatalog, *, allow_pickle: bool = False
) -> OptimizeResult:
    goals = Goals(prefer=Prefer.SIZE)
    options = OptimizeOptions(allow_pickle=allow_pickle)
    return optimize(uri, data, catalog=catalog, goals=goals, options=options)


def rejection(uri: str, data: Path, catalog: MlflowCatalog) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        run(uri, data, catalog, allow_pickle=True)
    return caught.value


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "pairs.npz", {"x": vectors()})


def test_optimize__every_variant__is_measured_and_one_registered(
    catalog: MlflowCatalog,
    digits_data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    recorder = Recorder()
    result = optimize(
        "models:/Digits/1",
        digits_data,
        catalog=catalog,
        goals=Goals(max_accuracy_drop=0.2, prefer=Prefer.SIZE),
        progress=recorder,
    )
    assert capfd.readouterr() == ("", "")
    by_recipe = {item.variant.recipe: item for item in result.judged}
    assert list(by_recipe) == ALL
    sizes = []
    for item in result.judged:
        measured = item.variant.measured
        assert measured is not None, item.reason
        sizes_served = [1, 2, 4, 8, 16, 32] if measured.row_independent else [1]
        assert [batch.batch for batch in measured.latency] == sizes_served
        assert measured.rows == ROWS - ROWS // 4
        assert measured.score is not None
        sizes.append(measured.size_bytes)
    assert sizes[1] < sizes[0]
    assert result.source_score == 1.0
    assert result.chosen.variant.recipe == min(
        by_recipe, key=lambda r: sizes[list(by_recipe).index(r)]
    )
    assert recorder.statuses(Stage.PUBLISH) == [StepStatus.STARTED, StepStatus.FINISHED]

    source = catalog.resolve("Digits/1")
    published = catalog.find_optimized("Digits/1")
    assert published == result.published
    bundle = catalog.fetch_bundle(published, tmp_path / "fetched")
    assert bundle.digest == result.digest
    assert bundle.manifest.name == "digits"
    assert bundle.manifest.source.uri == "models:/Digits/1"
    assert bundle.manifest.source.sha256 == source.sha256
    assert bundle.manifest.batching.buckets == (1, 2, 4, 8, 16, 32)
    assert bundle.manifest.evidence.rows == ROWS - ROWS // 4


def test_optimize__a_rerun__uses_the_cache_and_gives_the_same_digest(
    catalog: MlflowCatalog, digits_data: Path
) -> None:
    first = run("Digits", digits_data, catalog)
    recorder = Recorder()
    again = optimize(
        "Digits", digits_data, catalog=catalog, goals=Goals(prefer=Prefer.SIZE), progress=recorder
    )
    assert recorder.statuses(Stage.EXPORT) == [StepStatus.STARTED, StepStatus.CACHED]
    assert recorder.statuses(Stage.VARIANT) == [StepStatus.STARTED, StepStatus.CACHED] * len(ALL)
    assert again.digest == first.digest
    assert again.published == first.published
    shutil.rmtree(first.bundle.root)
    assert run("Digits", digits_data, catalog).digest == first.digest


def test_optimize__without_the_cache__gives_the_same_files_and_digest(
    catalog: MlflowCatalog, digits_data: Path, optimize_home: Path
) -> None:
    def graphs(result: OptimizeResult) -> dict[str, str]:
        models = [item.variant.model for item in result.judged]
        return {path.name: sha256_file(path / "model.onnx") for path in models if path}

    first = run("Digits", digits_data, catalog)
    assert len(graphs(first)) == len(ALL)
    shutil.rmtree(optimize_home / "cache" / "optimize")
    again = run("Digits", digits_data, catalog)
    assert graphs(again) == graphs(first)
    assert again.digest == first.digest


def test_optimize__golden_rows__hold_the_source_models_answers(
    catalog: MlflowCatalog, digits_data: Path
) -> None:
    result = optimize("Digits", digits_data, catalog=catalog, goals=Goals(), recipes=FP32)
    inputs, outputs = load_golden(result.bundle.path("golden.npz"))
    assert inputs["x"].shape == (32, 1, 8, 8)
    assert outputs["logits"].shape == (32, CLASSES)
    answers = open_session(result.bundle.path("model.onnx")).run(inputs)["logits"]
    stated = result.bundle.manifest.evidence.max_abs_error
    assert np.abs(answers - outputs["logits"]).max() <= stated + 1e-6
    assert verify(result.bundle.root, result.digest) == result.bundle


def test_evidence__after_optimize__has_every_variant_and_no_path(
    catalog: MlflowCatalog, digits_data: Path, optimize_home: Path
) -> None:
    result = run("Digits", digits_data, catalog)
    text = result.bundle.path("evidence.json").read_text()
    evidence = json.loads(text)
    assert [item["recipe"] for item in evidence["variants"]] == ALL
    assert [item["chosen"] for item in evidence["variants"]].count(True) == 1
    assert evidence["source"]["uri"] == "models:/Digits/1"
    assert evidence["data"]["labelled"] is True
    assert (evidence["metric_code"], evidence["higher_is_better"]) == (None, True)
    assert evidence["goals"]["prefer"] == "size"
    graph = result.bundle.path("model.onnx").read_bytes()
    for place in (str(optimize_home), str(Path.cwd())):
        assert place not in text
        assert place.encode() not in graph


def test_optimize__nothing_passes__is_an_error_with_the_table(
    catalog: MlflowCatalog, digits_data: Path
) -> None:
    with pytest.raises(NothingPassedError, match=r"p95 latency in ms .* over the limit") as caught:
        optimize("Digits", digits_data, catalog=catalog, goals=Goals(max_p95_ms=1e-9))
    assert caught.value.code is ErrorCode.NOTHING_PASSED
    assert len(caught.value.judged) == len(ALL)
    assert "<html" in caught.value.report


@dataclass(frozen=True)
class Broken:
    """A recipe that fails, or whose graph answers with NaN."""

    name: str
    precision: Precision = "fp16"
    version: int = 1
    targets: frozenset[Target] = frozenset(Target)
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        del bench
        if self.name == "path":
            raise RuntimeError(f"/body/MatMul in '{directory / 'model.onnx'}' is odd")
        if self.name == "raises":
            raise RuntimeError("no kernel for this\nand a long trace")
        model = onnx.load(str(source))
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(
                    onnx.numpy_helper.from_array(np.full_like(array, np.nan), tensor.name)
                )
        save_graph(model, directory)
        return Details()


def test_optimize__a_failing_recipe__does_not_stop_the_others(
    catalog: MlflowCatalog, digits_data: Path
) -> None:
    result = optimize(
        "Digits",
        digits_data,
        catalog=catalog,
        recipes=(Broken("raises"), Broken("nans"), *FP32),
    )
    reasons = {item.variant.recipe: item.reason for item in result.judged}
    assert reasons["raises"] == "failed: RuntimeError: no kernel for this"
    assert "NaN" in reasons["nans"]
    assert result.chosen.variant.recipe == "fp32"


def test_optimize__a_failure__names_no_path_of_this_machine(
    catalog: MlflowCatalog, digits_data: Path
) -> None:
    result = optimize("Digits", digits_data, catalog=catalog, recipes=(Broken("path"), *FP32))
    assert result.judged[0].reason == "failed: RuntimeError: /body/MatMul in 'model.onnx' is odd"


def test_optimize__a_limit_on_agreement_without_effect__is_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = np.random.default_rng(3).standard_normal((32, 6, 16), dtype=np.float32)
    data = save_rows(tmp_path / "rows.npz", {"inputs": rows})
    goals = Goals(min_agreement=0.5)
    with pytest.raises(MlctlError, match="a limit on agreement has no effect") as caught:
        optimize("linear", data, catalog=catalog, goals=goals, recipes=FP32)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_optimize__dependent_rows__are_served_alone(catalog: MlflowCatalog, pairs: Path) -> None:
    goals = Goals(prefer=Prefer.LATENCY)
    result = optimize("mixing", pairs, catalog=catalog, goals=goals, recipes=FP32)
    batching = result.bundle.manifest.batching
    assert not batching.row_independent
    assert (batching.max_rows, batching.buckets) == (1, (1,))
    _, outputs = load_golden(result.bundle.path("golden.npz"))
    assert np.abs(outputs["logits"]).max() == 0.0


def test_optimize__an_unlabelled_transformer__gets_dynamic_int8(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = np.random.default_rng(3).standard_normal((32, 6, 16), dtype=np.float32)
    result = run("linear", save_rows(tmp_path / "rows.npz", {"inputs": rows}), catalog)
    int8 = next(item.variant for item in result.judged if item.variant.recipe == "int8-dynamic")
    assert int8.measured is not None
    assert int8.measured.score is None
    assert int8.model is not None
    kinds = {node.op_type for node in onnx.load(str(int8.model / "model.onnx")).graph.node}
    assert "DynamicQuantizeLinear" in kinds
    # One scale for a batch: a row far from the others would take their digits.
    assert not int8.measured.row_independent
    assert [batch.batch for batch in int8.measured.latency] == [1]
    assert result.bundle.manifest.evidence.agreement is None


def test_optimize__a_variant_that_lost_row_independence__is_sealed_unbatched(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = np.random.default_rng(3).standard_normal((32, 6, 16), dtype=np.float32)
    data = save_rows(tmp_path / "rows.npz", {"inputs": rows})
    recipes = select(["int8-dynamic"], Target.CPU)
    result = optimize("linear", data, catalog=catalog, recipes=recipes)
    batching = result.bundle.manifest.batching
    assert (batching.row_independent, batching.buckets) == (False, (1,))
    assert "requests are not batched" in result.report


def test_optimize__several_inputs_and_outputs__keep_their_names(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    rows: dict[str, np.ndarray] = {
        "ids": random.integers(0, 11, (16, 5), dtype=np.int64),
        "mask": np.ones((16, 5), np.float32),
    }
    result = run("tokens", save_rows(tmp_path / "tokens.npz", rows), catalog)
    reasons = {item.variant.recipe: item.reason for item in result.judged}
    assert "the model has no Conv" in reasons["int8-static"]
    inputs, outputs = load_golden(result.bundle.path("golden.npz"))
    assert inputs.keys() == rows.keys()
    assert outputs.keys() == {"pooled", "count"}
    constraints = result.bundle.manifest.input_constraints
    assert constraints is not None
    # ONNX counts negative indices from the end, and torch rejects them.
    assert constraints.ranges == {"ids": (0, 10)}


def test_optimize__a_pickled_model__is_rejected_or_marked(
    catalog: MlflowCatalog, pairs: Path
) -> None:
    with pytest.raises(MlctlError) as caught:
        run("shifting", pairs, catalog)
    assert caught.value.code is ErrorCode.PICKLE_REJECTED
    result = run("shifting", pairs, catalog, allow_pickle=True)
    assert result.bundle.manifest.source.pickle_allowed


def test_optimize__data_dependent_control_flow__is_rejected_with_a_hint(
    catalog: MlflowCatalog, pairs: Path
) -> None:
    error = rejection("branching", pairs, catalog)
    assert error.code is ErrorCode.EXPORT_FAILED
    assert "control flow depends on the values" in error.message
    assert "torch.cond" in error.hint


def test_optimize__a_batch_size_fixed_by_a_loop__is_rejected(
    catalog: MlflowCatalog, pairs: Path
) -> None:
    error = rejection("looping", pairs, catalog)
    assert error.code is ErrorCode.EXPORT_FAILED
    assert "became fixed at" in error.message


def test_optimize__nan_of_the_source_model__is_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = vectors()
    rows[-20:] *= -1
    error = rejection("poisoned", save_rows(tmp_path / "x.npz", {"x": rows}), catalog)
    assert error.code is ErrorCode.UNSUPPORTED_MODEL
    assert "NaN" in error.message


def test_optimize__an_output_with_other_rows__is_rejected(
    catalog: MlflowCatalog, pairs: Path
) -> None:
    error = rejection("doubling", pairs, catalog)
    assert error.code is ErrorCode.UNSUPPORTED_MODEL
    assert "has shape [2, 3] for 1 input rows" in error.message


def test_optimize__labels_without_scores__are_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = np.ones((16, 6, 16), np.float32)
    data = save_rows(tmp_path / "x.npz", {"x": rows, "y": np.arange(16) % 2})
    error = rejection("linear", data, catalog)
    assert error.code is ErrorCode.INVALID_INPUT
    assert "hidden" in error.message
    assert "module:function" in error.hint


def test_optimize__labels_beyond_the_classes__are_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    data = save_rows(tmp_path / "x.npz", {"x": images(), "y": np.arange(ROWS)})
    assert f"the model has {CLASSES} classes" in rejection("Digits", data, catalog).message


def test_optimize__judging_rows_are_all_zero__proves_no_lossy_variant(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    rows = save_rows(tmp_path / "zeros.npz", {"x": np.zeros_like(images())})
    result = optimize(
        "Digits",
        rows,
        catalog=catalog,
        goals=Goals(prefer=Prefer.SIZE),
        recipes=select(["fp32", "fp16", "int8-static"], Target.CPU),
    )
    assert result.chosen.variant.recipe == "fp32"
    for item in result.judged[1:]:
        assert item.variant.measured is not None
        assert item.reason.startswith("the source model's answers do not vary over the judging")
    assert result.constant is not None
    assert result.constant in result.report.replace("&#39;", "'")
