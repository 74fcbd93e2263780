"""SECURITY.md: every threat names tests, and they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.test_architecture import PACKAGES, ROOT, sources

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_COLUMNS = ["Asset", "Attacker", "Attack", "Protection", "Test"]


def threats() -> list[list[str]]:
    """The rows of the table, cell by cell."""
    lines = (ROOT / "SECURITY.md").read_text().partition("## Threats")[2].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    head, _, *body = rows
    assert head == _COLUMNS
    return body


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file that pytest collects: functions at its top level."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = (node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions))
    return frozenset(name for name in found if name.startswith("test_"))


def test_threats__each_row__is_complete() -> None:
    rows = threats()
    assert len(rows) > 30
    for row in rows:
        assert len(row) == len(_COLUMNS)
        assert all(row[:4]), row
        assert row[4] or "**open**" in row[3], f"no test of: {row[2]}"


def test_threats__each_named_test__exists() -> None:
    for row in threats():
        named = _TEST.findall(row[4])
        assert len(named) == row[4].count("`") // 2, f"not a test: {row[4]}"
        for file, test in named:
            path = ROOT / file
            assert path.name.startswith("test_"), file
            assert path.is_file(), file
            assert test in names_in(path), f"{file}::{test}"


def test_packages__each_process_start__uses_no_shell() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in PACKAGES
        for path in sources(package)
        if re.search(r"shell|os\.system|popen|getoutput", text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and _is_shell(call)
    ]
    assert not found


_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def _is_shell(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _SHELLS or any(
        keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
        for keyword in call.keywords
    )


def test_is_shell__call_with_a_shell__is_found() -> None:
    for text in ("subprocess.run('x', shell=True)", "os.system('x')"):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert _is_shell(call)
