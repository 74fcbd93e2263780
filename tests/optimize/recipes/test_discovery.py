"""The hook, with real distributions: folders with a module and a .dist-info on sys.path."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.recipes.base import Recipe, Target
from mlctl.optimize.recipes.discovery import discover, select
from tests.optimize.recipes.models import answers, bench, images, network

GENERATION = ["gen-fp32", "gen-fp16", "gen-int4"]
OWN = ["fp32", "fp16", "int8-static", "int8-dynamic", "int8-trt", "int4", "int4-trt", *GENERATION]
DOCUMENT = Path(__file__).parents[3] / "docs" / "recipes.md"

GOOD = """
from dataclasses import dataclass
from mlctl.optimize.recipes.base import Details, Target

print("a plug-in that talks")

@dataclass(frozen=True)
class Copy:
    name: str = "copy"
    precision: str = "fp32"
    targets: frozenset = frozenset({Target.CPU})
    version: int = 1
    tuned: bool = False

    def build(self, source, directory, bench):
        (directory / "model.onnx").write_bytes(source.read_bytes())
        return Details()

ready = Copy()
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test imports from its folder is not there for the next one."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


class Folder:
    """A place on sys.path in which distributions can be put."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def install(self, distribution: str, entry: str, module: str, code: str) -> None:
        (self._root / f"{module}.py").write_text(code)
        info = self._root / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[mlctl.recipes]\n{entry}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    return Folder(root)


def names(recipes: tuple[Recipe, ...]) -> list[str]:
    return [recipe.name for recipe in recipes]


def found(name: str) -> Recipe:
    return next(recipe for recipe in discover() if recipe.name == name)


def rejection(wanted: list[str], target: Target) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        select(wanted, target)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    return caught.value


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target.CPU, ["fp32", "fp16", "int8-static", "int8-dynamic", "int4"]),
        (Target.CUDA, ["fp32", "fp16", "int8-trt"]),
        (Target.TENSORRT, ["fp32", "fp16", "int8-trt", "int4-trt"]),
    ],
)
def test_select__no_names__takes_all_for_the_target(target: Target, expected: list[str]) -> None:
    assert names(select(None, target)) == expected
    assert names(discover()) == OWN


def test_select__no_names_for_a_language_model__takes_those_of_language_models() -> None:
    assert names(select(None, Target.CPU, generates=True)) == GENERATION
    assert select(None, Target.CUDA, generates=True) == ()


def test_select__names__keep_their_order_once_each() -> None:
    assert names(select(["int4", "fp32", "int4"], Target.CPU)) == ["int4", "fp32"]


def test_select__an_unknown_name__suggests_similar_ones() -> None:
    error = rejection(["int8static"], Target.CPU)
    assert "did you mean 'int8-static'" in error.message
    assert error.hint == (
        "Recipes for cpu: fp32, fp16, int8-static, int8-dynamic, int4, gen-fp32, gen-fp16, "
        "gen-int4."
    )


def test_select__a_recipe_for_another_target__is_rejected() -> None:
    error = rejection(["int4-trt"], Target.CPU)
    assert error.message == "the recipe 'int4-trt' is not for the target cpu, it is for tensorrt"


def test_select__an_empty_list__is_rejected() -> None:
    assert "no recipe is named" in rejection([], Target.CPU).message


@pytest.mark.parametrize("value", ["Copy", "ready"])
def test_discover__a_recipe_of_another_package__is_found_and_quiet(
    folder: Folder, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.install("other-package", f"copy = strange:{value}", "strange", GOOD)
    assert names(discover()) == [*OWN, "copy"]
    assert names(select(["copy"], Target.CPU)) == ["copy"]
    assert "copy" not in names(select(None, Target.CUDA))
    assert capsys.readouterr() == ("", "")


def test_discover__a_name_of_two_packages__is_rejected(folder: Folder) -> None:
    folder.install("first-package", "copy = strange:Copy", "strange", GOOD)
    folder.install("second-package", "copy = strange2:Copy", "strange2", GOOD)
    with pytest.raises(MlctlError, match=r"'copy' of .*-package .*another recipe has its name"):
        discover()


def test_discover__a_built_in_name__is_rejected(folder: Folder) -> None:
    folder.install("bold", "fp16 = strange:Copy", "strange", GOOD)
    with pytest.raises(MlctlError, match=r"'fp16' of bold .*another recipe has its name"):
        discover()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("Other = 1", "has no attribute 'Copy'"),
        (GOOD.replace('"copy"', '"other"'), "its name is 'other'; it must be 'copy'"),
        (GOOD.replace('"fp32"', '"fp8"'), "precision is not one of fp32, "),
        (GOOD.replace("frozenset({Target.CPU})", 'frozenset({"cpu", "tpu"})'), "its targets are"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded__is_rejected__names_its_package(
    folder: Folder, code: str, reason: str
) -> None:
    folder.install("broken-package", "copy = strange:Copy", "strange", code)
    with pytest.raises(MlctlError, match=re.escape(reason)) as caught:
        discover()
    assert "'copy' of broken-package cannot be used" in caught.value.message
    assert caught.value.hint == "Uninstall or repair broken-package."


def test_discover__a_name_that_no_manifest_allows__is_rejected(folder: Folder) -> None:
    folder.install("shouting", "COPY = strange:Copy", "strange", GOOD.replace('"copy"', '"COPY"'))
    with pytest.raises(MlctlError, match="in a-z, 0-9 and -"):
        discover()


def test_discover__the_documented_example__works(folder: Folder, tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    code, project = (
        re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[0]
        for language in ("python", "toml")
    )
    described = tomllib.loads(project)
    (entry,) = described["project"]["entry-points"]["mlctl.recipes"].items()
    (module,) = described["tool"]["setuptools"]["py-modules"]
    folder.install(described["project"]["name"], " = ".join(entry), module, code)
    (recipe,) = select(["half-weights"], Target.CPU)
    source, out = network(tmp_path / "source"), tmp_path / "out"
    out.mkdir()
    details = recipe.build(source, out, bench(source, images()))
    assert details.settings == {"weights in fp16": "3"}
    assert (out / "model.onnx").stat().st_size < 0.6 * source.stat().st_size
    want, have = answers(source.parent, images())["y"], answers(out, images())["y"]
    assert 0 < abs(want - have).max() < 1e-2


@pytest.mark.parametrize("name", OWN)
def test_documentation__every_recipe__is_listed(name: str) -> None:
    page = DOCUMENT.with_name("optimize.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
    targets = [target.value for target in Target if target in found(name).targets]
    assert row.split("|")[2].strip() == ", ".join(targets)
