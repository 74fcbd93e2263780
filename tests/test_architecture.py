"""The house rules that no linter knows: import directions, lazy imports, file sizes, no pickle."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "bundle": set[str](),
    "registry": {"bundle"},
    "services": {"bundle"},
    "optimize": {"bundle", "registry", "services"},
    "rollout": {"bundle", "registry"},
    "cli": {"bundle", "registry", "services", "optimize", "rollout", "examples"},
    "examples": {"bundle", "registry", "services"},
}
HEAVY = {"torch", "mlflow", "bentoml", "onnxruntime", "onnx", "pandas", "numpy", "pydantic"}
MAX_LINES = 400
MAX_FUNCTION_LINES = 50


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported_roots(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


def modules(package: str) -> list[str]:
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources(package)
        if path.name != "__main__.py"
    ]


def loaded_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_only_to_the_left(package: str) -> None:
    allowed = PACKAGES[package] | {package}
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in sources(package)
        for name in imported_roots(path)
        if name in PACKAGES and name not in allowed
    }
    assert not found


def test_server__what_it_imports__is_no_build_tool() -> None:
    """Lazy imports included: an image need not contain what builds it."""
    outside = [path for path in sources("services") if "ship" not in path.parts]
    found = [str(path.relative_to(ROOT)) for path in outside if "services.ship" in path.read_text()]
    assert not found


def test_every_package_of_the_house_is_checked() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"tests", "benchmarks"} == set(PACKAGES)


def test_importing_services_loads_neither_torch_nor_mlflow() -> None:
    # services.service builds the service of the bundle it finds, so it needs one to import.
    names = [name for name in modules("services") if name != "services.service"]
    assert len(names) > 5
    assert not loaded_after(f"import {', '.join(names)}") & {"torch", "mlflow"}


def test_help_loads_no_heavy_library() -> None:
    loaded = loaded_after(
        "from click.testing import CliRunner\n"
        "from cli.main import cli\n"
        "result = CliRunner().invoke(cli, ['--help'])\n"
        "assert result.exit_code == 0, result.output"
    )
    assert not loaded & HEAVY


@pytest.mark.parametrize("package", [*PACKAGES, "tests", "docs", "benchmarks"])
def test_files_and_functions_stay_short(package: str) -> None:
    long = []
    for path in sources(package):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if text.count("\n") > MAX_LINES:
            long.append(f"{name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert not long


UNSAFE_CALLS = {
    ("pickle", "load"), ("pickle", "loads"), ("cloudpickle", "load"), ("cloudpickle", "loads"),
    ("joblib", "load"), ("dill", "load"), ("marshal", "loads"), ("yaml", "load"),
    ("torch", "load"),
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_unpickled_or_evaluated(package: str) -> None:
    found = []
    for path in sources(package):
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
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
