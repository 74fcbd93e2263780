"""House rules that no linter checks: lazy imports, what a Bento contains, no pickle.

The layers and the absence of import cycles are contracts in `pyproject.toml`: see `make check`.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from mlctl.bento.packaging import bento_sources

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "core", "bundle", "registry", "services", "optimize", "loadtest", "bento", "rollout", "doctor",
    "examples", "cli", "mlctl",
)  # fmt: skip
HEAVY = {"torch", "mlflow", "bentoml", "onnxruntime", "onnx", "pandas", "numpy", "pydantic"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.partition(".")[0] == "mlctl" else f"mlctl.{name}"


def loaded_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_packages__all_top_level_folders__are_under_the_contracts() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"tests", "benchmarks"} == set(PACKAGES)
    links = {path.name: path.readlink() for path in ROOT.glob("mlctl/*") if path.is_symlink()}
    assert links == {name: Path("..", name) for name in folders - {"tests", "benchmarks", "mlctl"}}


def test_classes__public_ones__have_names_that_exist_once() -> None:
    files = [path for name in (*PACKAGES, "benchmarks") for path in sources(name)]
    pattern = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)
    found = [name for path in files for name in pattern.findall(path.read_text())]
    assert {name for name, count in Counter(found).items() if count > 1} == set()


@pytest.mark.slow
def test_services__imported_whole__load_neither_torch_nor_mlflow() -> None:
    # mlctl.services.service builds the service of the bundle it finds, so it needs one to import.
    names = [module_of(path) for path in sources("services") if path.name != "__main__.py"]
    names.remove("mlctl.services.service")
    assert len(names) > 5
    assert not loaded_after(f"import {', '.join(names)}") & {"torch", "mlflow"}


@pytest.mark.slow
def test_help__without_a_command__loads_no_heavy_library() -> None:
    loaded = loaded_after(
        "from click.testing import CliRunner\n"
        "from mlctl.cli.main import cli\n"
        "result = CliRunner().invoke(cli, ['--help'])\n"
        "assert result.exit_code == 0, result.output"
    )
    assert not loaded & HEAVY


# Processes of their own: the server starts them by their names.
OTHERS_IN_A_BENTO = {
    "mlctl.services.generate.grammar_process",
    "mlctl.services.model.engine_worker",
}
# Their modules are imported by name: the scheme of a URL, --payload.
PLUG_INS = ("mlctl.services.stream.payloads.", "mlctl.services.stream.transports.")


def test_bento__each_module_in_it__is_imported_by_the_server_or_the_runners() -> None:
    graph = grimp.build_graph("mlctl", exclude_type_checking_imports=True)
    entries = {"mlctl.services.service", "mlctl.cli.runners.__main__"}
    imported = set[str]().union(
        *(graph.find_upstream_modules(each, as_package=False) for each in entries)
    )
    inside = {
        module_of(path)
        for path in bento_sources()
        if path.suffix == ".py" and path.name != "__init__.py"
    }
    others = {name for name in inside - imported - entries if not name.startswith(PLUG_INS)}
    assert others == OTHERS_IN_A_BENTO
    packages = {name for name in imported if (ROOT / name.replace(".", "/")).is_dir()}
    assert {name for name in imported - packages if name.startswith("mlctl.")} <= inside


_TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w*)\(", re.MULTILINE)


def test_tests__each_name__has_feature_condition_and_result() -> None:
    wrong = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent.name != "suite"  # they hold the text of other tests
        for name in _TEST_NAME.findall(path.read_text())
        if not re.fullmatch(r"test_[a-z0-9_]+?__[a-z0-9_]+?__[a-z0-9_]+", name)
    }
    assert wrong == set()


def test_tests__folder_of_a_package__is_that_of_the_code() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests")
        for name in PACKAGES
        for path in (ROOT / "tests" / name).rglob("test_*.py")
    }
    assert len(folders) > 40
    assert {folder for folder in folders if not (ROOT / folder).is_dir()} <= {Path("optimize/zoo")}


UNSAFE_CALLS = {
    ("pickle", "load"), ("pickle", "loads"), ("cloudpickle", "load"), ("cloudpickle", "loads"),
    ("joblib", "load"), ("dill", "load"), ("marshal", "loads"), ("yaml", "load"),
    ("torch", "load"),
}  # fmt: skip


def unsafe_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                unsafe = (module, name) in UNSAFE_CALLS
            case ast.Name(id="eval" | "exec"):
                unsafe = True
            case _:
                unsafe = False
        allows_pickle = any(
            keyword.arg == "allow_pickle"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is True
            for keyword in node.keywords
        )
        if unsafe or allows_pickle:
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("package", PACKAGES)
def test_code__of_a_package__unpickles_and_evaluates_nothing(package: str) -> None:
    assert [call for path in sources(package) for call in unsafe_calls(path)] == []
