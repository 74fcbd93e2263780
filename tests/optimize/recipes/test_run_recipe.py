"""Recipes of other packages that raise and leave what they should not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.recipes.base import Details, Precision, Target, Workbench
from mlctl.optimize.variants.attempt import run_recipe
from tests.optimize.recipes.models import bench, images, network

Body = Callable[[Path, Path], Any]


@dataclass(frozen=True)
class Strange:
    body: Body
    name: str = "strange"
    precision: Precision = "fp32"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 1
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:  # noqa: ARG002
        found: Details = self.body(source, directory)
        return found


def copied(source: Path, directory: Path) -> Details:
    (directory / "model.onnx").write_bytes(source.read_bytes())
    return Details({"copied": "yes"})


def described(source: Path, directory: Path) -> Details:
    model = onnx.load(str(source))
    model.doc_string = "of the recipe"
    onnx.save(model, str(directory / "model.onnx"))
    return Details({"described": "yes"})


def raising(error: BaseException) -> Body:
    def body(source: Path, directory: Path) -> Details:
        del source, directory
        raise error

    return body


def leaving_a_folder(source: Path, directory: Path) -> Details:
    (directory / "scratch").mkdir()
    return copied(source, directory)


def leaving_a_link(source: Path, directory: Path) -> Details:
    (directory / "model.onnx").symlink_to(source)
    return Details()


def leaving_weights_elsewhere(source: Path, directory: Path) -> Details:
    onnx.save_model(
        onnx.load(str(source)),
        str(directory / "model.onnx"),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return Details()


def unsorted(source: Path, directory: Path) -> Details:
    model = onnx.load(str(source))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[1:], nodes[0]])
    onnx.save(model, str(directory / "model.onnx"))
    return Details()


def of_another_shape(source: Path, directory: Path) -> Details:
    """A graph that the checker accepts; only strict inference sees that a product cannot be."""
    model = onnx.load(str(source))
    weight = next(each for each in model.graph.initializer if each.name == "first")
    weight.dims[:] = [128, 64]
    onnx.save(model, str(directory / "model.onnx"))
    return Details()


def build(body: Body, tmp_path: Path) -> Details:
    out = tmp_path / "out"
    out.mkdir(parents=True)
    source = network(tmp_path / "source")
    return run_recipe(Strange(body), source, out, bench(source, images()))


def test_run_recipe__a_good_recipe__returns_its_details(tmp_path: Path) -> None:
    assert build(copied, tmp_path) == Details({"copied": "yes"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (raising(ValueError("no kernel")), "^no kernel$"),
        (raising(FileNotFoundError("no table")), "FileNotFoundError: no table"),
        (raising(TimeoutError("no answer")), "TimeoutError: no answer"),
        (raising(KeyError("w")), "KeyError: 'w'"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (lambda *_: Details(), "it wrote no model.onnx"),
        (leaving_a_folder, "it left 'scratch'; a variant is only model.onnx and model.onnx.data"),
        (leaving_a_link, "it left 'model.onnx'; a variant is only"),
        (leaving_weights_elsewhere, "it left 'weights.bin'; a variant is only"),
    ],
)
def test_run_recipe__a_fault__is_the_reason(tmp_path: Path, body: Body, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(body, tmp_path)


@pytest.mark.parametrize(
    ("body", "operator"), [(unsorted, "OpType: Relu"), (of_another_shape, "MatMul.*first_product")]
)
def test_run_recipe__an_invalid_graph__names_recipe_operator_and_remedy(
    tmp_path: Path, body: Body, operator: str
) -> None:
    remedy = "; leave the recipe out with --recipes, or export the model with another opset$"
    with pytest.raises(ValueError, match=f"strange wrote is invalid: .*{operator}.*{remedy}"):
        build(body, tmp_path)


def test_run_recipe__a_source_that_the_checker_rejects__is_no_fault_of_the_recipe(
    tmp_path: Path,
) -> None:
    broken, out = tmp_path / "broken", tmp_path / "out"
    broken.mkdir()
    out.mkdir()
    source = network(tmp_path / "source")
    of_another_shape(source, broken)
    details = run_recipe(Strange(described), broken / "model.onnx", out, bench(source, images()))
    assert details == Details({"described": "yes"})


def test_run_recipe__a_copy_of_a_graph_that_crashes_the_checker__is_a_variant(
    tmp_path: Path,
) -> None:
    text, flag = onnx.TensorProto.STRING, onnx.TensorProto.BOOL
    of_no_type = helper.make_node(
        "Tokenizer", ["text"], ["word"], domain="com.microsoft", mark=0, mincharnum=1
    )
    graph = helper.make_graph(
        [of_no_type, helper.make_node("RegexFullMatch", ["word"], ["found"], pattern="a")],
        "words",
        [helper.make_tensor_value_info("text", text, [None])],
        [helper.make_tensor_value_info("found", flag, [None, None])],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    source, out = tmp_path / "model.onnx", tmp_path / "out"
    out.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=imports), str(source))
    assert run_recipe(Strange(copied), source, out, bench(source, images())).settings


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_run_recipe__a_full_disk__is_raised(tmp_path: Path, number: int) -> None:
    with pytest.raises(OSError, match="gone") as caught:
        build(raising(OSError(number, "gone")), tmp_path)
    assert caught.value.errno == number


def test_run_recipe__own_errors_and_interrupts__are_raised(tmp_path: Path) -> None:
    with pytest.raises(MlctlError):
        build(raising(MlctlError(ErrorCode.INVALID_INPUT, "odd")), tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        build(raising(KeyboardInterrupt()), tmp_path / "two")
