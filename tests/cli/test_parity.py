"""`mlctl parity` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cli.main import cli
from services.packaging import build_bento
from tests.support.bundles import make_bundle
from tests.support.mlctl import Mlctl


@pytest.mark.slow
def test_a_bento_answers_the_same_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "bentoml"))
    build_bento(make_bundle(tmp_path / "tiny"), {})
    x = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "more.npz", x=x)
    done = Mlctl(tmp_path).run("parity", "tiny", "--rows", "more.npz", "--json")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert found["passed"]
    assert found["exact"]
    seen = {(each["way"], each["data"], each["size"]): each for each in found["findings"]}
    ways = ("HTTP", "HTTP, JSON", "HTTP by ASGI", "/predict", "gRPC", "batch")
    for way in ways:
        for data, size, rows in (("golden", 1, 8), ("golden", 8, 8), ("more.npz", 32, 40)):
            finding = seen[way, data, size]
            assert (finding["verdict"], finding["rows"], finding["allowed"]) == ("same", rows, None)
    assert seen["recorded", "golden", 8]["allowed"] > 0


def test_rows_that_are_none_and_a_bento_that_is_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["parity", "nobody", "--json"])
    assert json.loads(done.output)["error"]["code"] == "bento_not_found"
    done = CliRunner().invoke(cli, ["parity", "nobody", "--rows", str(tmp_path / "none.npz")])
    assert done.exit_code == 2
