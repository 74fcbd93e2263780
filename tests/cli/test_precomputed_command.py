"""`mlctl precomputed` as an operator uses it: a name's generations, flipped and gone back from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlctl.cli.main import cli
from tests.support import tables
from tests.support.bundles import make_bundle


def mlctl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def states() -> list[tuple[int, str, int]]:
    found = json.loads(mlctl("precomputed", "show", "scores", "--json").stdout)
    return [(each["number"], each["state"], each["rows"]) for each in found]


def test_precomputed__generations__are_shown_flipped_and_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert "No precomputed predictions" in mlctl("precomputed", "list").stderr
    assert mlctl("precomputed", "show", "scores").exit_code == 3
    assert mlctl("precomputed", "show", "../scores").exit_code == 2
    bundle = make_bundle(tmp_path / "tiny")
    for rows, options in ((10, ()), (20, ()), (30, ("--option", "flip=no"))):
        tables.write_rows(tmp_path / f"{rows}.parquet", rows)
        done = mlctl(
            "batch", "run", "tiny", "--in", f"{rows}.parquet", "--out", "precomputed://scores",
            "--keep", "id", "--threads", "1", *options,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    assert states() == [(1, "previous", 10), (2, "live", 20), (3, "complete", 30)]
    assert (
        f"generation 3 is live for {bundle.digest[:12]}"
        in mlctl("precomputed", "flip", "scores", "3").stdout
    )
    assert states() == [(2, "previous", 20), (3, "live", 30)]
    assert mlctl("precomputed", "rollback", "scores", "--digest", "f" * 65).exit_code == 3
    assert mlctl("precomputed", "rollback", "scores").exit_code == 0
    assert states() == [(2, "live", 20), (3, "previous", 30)]
    assert mlctl("precomputed", "flip", "scores", "1").exit_code == 3
    assert bundle.digest[:12] in mlctl("precomputed", "list").stdout
    assert "previous" in mlctl("precomputed", "show", "scores").stdout


def test_precomputed__unknown_store__is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", "mongodb://somewhere")
    failed = mlctl("precomputed", "list", "--json")
    assert failed.exit_code == 2
    assert "MLCTL_PRECOMPUTED_STORE" in json.loads(failed.stdout)["error"]["message"]
