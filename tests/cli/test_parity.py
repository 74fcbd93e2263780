"""`mlctl parity` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlctl.bento.packaging import build_bento
from mlctl.cli.main import cli
from mlctl.core.home import HOME_VARIABLE
from mlctl.loadtest.parity.compare import PathComparison, PathVerdict
from mlctl.loadtest.parity.run import ParityReport
from tests.support.bundles import make_bundle
from tests.support.pairs import make_pair_pipeline

pytestmark = pytest.mark.slow
WAYS = ("HTTP", "HTTP, JSON", "/predict", "gRPC", "batch")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with the Bento `tiny`, and the pipeline `both`."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(home / "bentoml"))
        build_bento(make_bundle(home / "tiny"), {})
        build_bento(make_pair_pipeline(home / "both"), {})
    return home


def as_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands of this process use that state directory."""
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.delenv("BENTOML_HOME", raising=False)


def test_parity__bento_over_each_path__answers_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(home, monkeypatch)
    x = np.random.default_rng(5).normal(size=(33, 4)).astype(np.float32)
    np.savez(home / "more.npz", x=x)
    # In this process, which has loaded all that a new one would have to; the server has its own.
    done = CliRunner().invoke(cli, ["parity", "tiny", "--data", str(home / "more.npz"), "--json"])
    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert found["passed"]
    assert found["exact"]
    seen = {(each["path"], each["data"], each["size"]): each for each in found["findings"]}
    for way in (*WAYS, "stream, json"):
        for data, size, rows in (("golden", 1, 8), ("golden", 8, 8), ("more.npz", 32, 33)):
            finding = seen[way, data, size]
            assert (finding["verdict"], finding["rows"], finding["allowed"]) == ("same", rows, None)
    assert seen["recorded", "golden", 8]["allowed"] > 0


def test_parity__pipeline_over_each_path__answers_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(home, monkeypatch)
    done = CliRunner().invoke(cli, ["parity", "both", "--json"])
    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert (found["passed"], found["exact"]) == (True, True)
    seen = {(each["path"], each["size"]): each for each in found["findings"]}
    for way in (*WAYS, "stream, json"):
        for size in (1, 4):
            finding = seen[way, size]
            assert (finding["verdict"], finding["rows"], finding["allowed"]) == ("same", 4, None)
    assert seen["recorded", 4]["verdict"] == "left out"
    assert seen["rows together", 4]["rows"] == 4


def test_parity__path_differs__is_shown_and_fails(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(home, monkeypatch)
    findings = (
        PathComparison("HTTP", "golden", 1, PathVerdict.SAME, 8),
        PathComparison("gRPC", "golden", 8, PathVerdict.DIFFERS, 8, 3, 0.5, None, "y"),
        PathComparison(
            "/predict", "golden", 8, PathVerdict.LEFT_OUT, detail="JSON has no word for it"
        ),
    )
    told = ParityReport("d" * 64, exact=True, findings=findings)
    monkeypatch.setattr("mlctl.loadtest.parity.run.run_parity", lambda *_arguments: told)
    shown = CliRunner().invoke(cli, ["parity", "tiny/tiny"])
    assert shown.exit_code == 5
    assert f"/tiny {'d' * 12}" in shown.output
    (line,) = (line.split() for line in shown.output.splitlines() if "gRPC" in line)
    assert line == ["gRPC", "golden", "8", "8", "3", "0.5", "0", "differs", "of", "'y'"]
    assert "left out: JSON has no word for it" in shown.output
    assert "1 of 3 comparisons failed" in shown.output


def test_parity__missing_bento__fails_with_its_code() -> None:
    done = CliRunner().invoke(cli, ["parity", "nobody", "--json"])
    assert json.loads(done.output)["error"]["code"] == "bento_not_found"
