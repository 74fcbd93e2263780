"""`mlctl batch` as a user runs it: resumed after Ctrl-C, refused, estimated."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.transforms import TOKENIZER, make_text_bundle
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def mlctl(tmp_path: Path) -> Mlctl:
    make_bundle(tmp_path / "tiny")
    return Mlctl(tmp_path)


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_batch_run__repeated_after_it_finished__has_nothing_to_do(mlctl: Mlctl) -> None:
    tables.write_rows(mlctl.home / "in.parquet", 1500)
    command = ("batch", "run", "tiny", "--in", "in.parquet", "--out", "out", "--keep", "id")
    done = mlctl.run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out has 1,500 answers (1,500 rows in ")
    again = mlctl.run(*command, "--json")
    assert [event["event"] for event in events(again.stdout)] == ["summary"]
    assert events(again.stdout)[0]["run_rows"] == 0
    other = mlctl.run(*command, "--map", "x=id")
    assert (other.returncode, other.stdout) == (2, "")
    assert "has one value of int64 in a row, expected 4 values" in other.stderr
    changed = mlctl.run(*command, "--keep", "x")
    assert changed.returncode == 8
    assert 'keep was ["id"], is ["id", "x"]' in changed.stderr
    assert "--restart" in changed.stderr


def test_batch_run__ctrl_c__commits_units_in_progress_and_resumes(mlctl: Mlctl) -> None:
    tables.write_rows(mlctl.home / "in.parquet", 9_000, group=20)
    command = (
        "batch", "run", "tiny", "--in", "in.parquet", "--out", "out", "--keep", "id",
        "--unit-rows", "20", "--batch-rows", "1", "--threads", "1", "--json",
    )  # fmt: skip
    process = subprocess.Popen(
        mlctl.command(*command),
        env=mlctl.environment,
        cwd=mlctl.home,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "started"
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    document = rest[rest.index("{\n") :]
    assert json.loads(document)["error"]["code"] == "interrupted"
    done = mlctl.run(*command)
    assert done.returncode == 0
    assert tables.answers(mlctl.home / "out")["id"].to_pylist() == list(range(9_000))


def test_batch_run__second_ctrl_c__ends_at_once(mlctl: Mlctl) -> None:
    began = "import time; (Path(__file__).parents[2] / 'began').touch(); time.sleep(600)"
    slow = TOKENIZER.replace("def preprocess(inputs):", f"def preprocess(inputs):\n    {began}")
    make_text_bundle(mlctl.home / "texts", slow)
    parquet.write_table(pa.table({"text": ["one"] * 100}), mlctl.home / "in.parquet")
    command = mlctl.command("batch", "run", "texts", "--in", "in.parquet", "--out", "out", "--json")
    process = subprocess.Popen(
        command, env=mlctl.environment, cwd=mlctl.home, stdout=subprocess.PIPE, text=True
    )
    with process:
        wait_until((mlctl.home / "began").exists, what="a unit is being scored")
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert json.loads(said[said.index("{\n") :])["error"]["code"] == "interrupted"


@pytest.mark.parametrize(
    "target", ["out", "sqlite://out.db?table=t&create=yes", "duckdb://out.db?table=t&create=yes"]
)
def test_batch_run__limit_of_a_files_size__exits_as_on_a_full_disk(
    mlctl: Mlctl, target: str
) -> None:
    tables.write_rows(mlctl.home / "in.parquet", 20_000)
    command = (
        "batch", "run", "tiny", "--in", "in.parquet", "--out", target, "--keep", "id,x",
        "--patience", "0s",
    )  # fmt: skip
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *mlctl.command(*command)]
    done = subprocess.run(
        limited, env=mlctl.environment, cwd=mlctl.home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 13, done.stderr
    assert "there is no space left" in done.stderr
    assert mlctl.run(*command).returncode == 0


def test_batch_run__over_a_quarantine_with_a_fixed_model__answers_its_rows(mlctl: Mlctl) -> None:
    make_text_bundle(mlctl.home / "texts")
    make_text_bundle(mlctl.home / "fixed", TOKENIZER.replace("raise ValueError", "print"))
    column = pa.array(["" if row == 7 else "one" for row in range(500)])
    parquet.write_table(pa.table({"id": range(500), "text": column}), mlctl.home / "in.parquet")
    done = mlctl.run("batch", "run", "texts", "--in", "in.parquet", "--out", "out", "--keep", "id")
    assert done.returncode == 0, done.stderr
    assert "Rejected rows in quarantine: 1" in done.stdout
    hint = "mlctl batch run NEW --in out/_mlctl/quarantine --out out/redrive"
    assert hint in done.stdout + done.stderr
    command = [*hint.replace("NEW", "fixed").split()[1:], "--keep", "id", "--json"]
    assert events(mlctl.run(*command).stdout)[-1]["rows"] == 1
    assert tables.answers(mlctl.home / "out" / "redrive")["id"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing", "--in", "in.parquet"), 3, "no Bento 'nothing'"),
        (("tiny", "--in", "none.parquet"), 2, "none.parquet does not exist"),
        (("tiny", "--in", "in.parquet", "--max-errors", "x"), 2, "--max-errors x"),
        (("tiny", "--in", "in.parquet", "--keep", "no"), 2, "--keep no: there is no such column"),
        (("tiny", "--in", "in.parquet", "--filter", "no > 1"), 2, "there is no column 'no'"),
    ],
)
def test_batch_run__invalid_request__fails_before_anything_is_written(
    mlctl: Mlctl, arguments: tuple[str, ...], code: int, message: str
) -> None:
    tables.write_rows(mlctl.home / "in.parquet", 10)
    done = mlctl.run("batch", "run", *arguments, "--out", "out")
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert not (mlctl.home / "out").exists()


def test_batch_estimate__sample__shows_time_and_cost(mlctl: Mlctl) -> None:
    tables.write_rows(mlctl.home / "in.parquet", 3_000)
    command = (
        "batch", "estimate", "tiny", "--in", "in.parquet", "--unit-rows", "100",
        "--duration", "0.2s",
    )  # fmt: skip
    found = mlctl.json(*command, "--hour-price", "0.04")
    assert found["total_rows"] == 3_000
    assert found["job_hours"] == pytest.approx(found["million_seconds"] * 0.003 / 3600)
    assert found["job_cost"] == pytest.approx(found["million_cost"] * 0.003)
    done = mlctl.run(*command)
    assert "All 3,000 rows: " in done.stdout
    assert "Cost" not in done.stdout
    assert sorted(path.name for path in mlctl.home.glob("*.parquet")) == ["in.parquet"]
