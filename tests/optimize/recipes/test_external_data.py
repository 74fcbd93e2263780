"""Models whose weights are too large for one file: the limit is lowered, so tiny ones take the way.

Every recipe reads a source with external data and writes its own; the result is the same
to the byte when it is made again.
"""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from mlctl.core.files import sha256_file
from mlctl.optimize.recipes import base
from mlctl.optimize.recipes.base import DATA_NAME, Details, Recipe, save_graph
from mlctl.optimize.recipes.discovery import discover
from mlctl.optimize.recipes.generation import GenerationRecipe
from mlctl.optimize.variants.goals import Goals
from tests.optimize.recipes.models import answers, bench, images, network

ANY = Goals(min_centred_cosine=0.0, min_agreement=0.0)
# Language models are folders, which test_generation covers.
RECIPES = [recipe for recipe in discover() if not isinstance(recipe, GenerationRecipe)]

# The bound on relative L2 for each precision, for a net of three random layers.
NEAR = {"fp32": 1e-6, "fp16": 2e-3, "int8": 0.1, "int4": 0.25}


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_INLINE_BYTES", 1 << 10)


def build(recipe: Recipe, source: Path, out: Path) -> Details:
    out.mkdir()
    return recipe.build(source, out, bench(source, images(), ANY))


def locations(file: Path) -> set[str]:
    graph = onnx.load(str(file), load_external_data=False).graph
    outside = (tensor for tensor in graph.initializer if uses_external_data(tensor))
    return {str(ExternalDataInfo(tensor).location) for tensor in outside}


@pytest.mark.usefixtures("lowered")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_external_data__each_recipe__reads_and_writes_it(recipe: Recipe, tmp_path: Path) -> None:
    source, out = network(tmp_path / "source", external=True), tmp_path / "out"
    before = {path.name: sha256_file(path) for path in source.parent.iterdir()}
    build(recipe, source, out)
    assert {
        path.name: sha256_file(path) for path in source.parent.iterdir() if path.is_file()
    } == before

    assert locations(out / "model.onnx") == {DATA_NAME}
    mode = stat.S_IMODE((out / DATA_NAME).stat().st_mode)
    assert mode == stat.S_IMODE((out / "model.onnx").stat().st_mode)
    assert {path.name for path in out.iterdir()} == {"model.onnx", DATA_NAME}
    moved = out.rename(tmp_path / "elsewhere")
    want = answers(source.parent, images())["y"]
    have = answers(moved, images())["y"]
    assert np.linalg.norm(want - have) / np.linalg.norm(want) < NEAR[recipe.precision]


@pytest.mark.usefixtures("lowered")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_external_data__the_same_inputs__give_the_same_bytes(
    recipe: Recipe, tmp_path: Path
) -> None:
    digests = []
    for name in ("one", "two"):
        source = network(tmp_path / name / "source", external=True)
        details = build(recipe, source, tmp_path / name / "out")
        files = sorted((tmp_path / name / "out").iterdir())
        digests.append(([(file.name, sha256_file(file)) for file in files], details))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_save_graph__a_small_model__is_one_file(recipe: Recipe, tmp_path: Path) -> None:
    inline, external = (
        network(tmp_path / name, external=name == "external") for name in ("inline", "external")
    )
    build(recipe, inline, tmp_path / "from-inline")
    build(recipe, external, tmp_path / "from-external")
    assert not (tmp_path / "from-inline" / DATA_NAME).exists()
    one, other = (
        answers(tmp_path / f"from-{source}", images())["y"] for source in ("inline", "external")
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("lowered")
def test_save_graph__again__replaces_the_data(tmp_path: Path) -> None:
    source = network(tmp_path / "source", external=True)
    sizes = []
    for _ in range(2):
        save_graph(onnx.load(str(source)), tmp_path)
        sizes.append((tmp_path / DATA_NAME).stat().st_size)
    assert sizes[0] == sizes[1]
    np.testing.assert_array_equal(
        answers(tmp_path, images())["y"], answers(source.parent, images())["y"]
    )
