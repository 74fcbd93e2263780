"""The command in this process, with the in-memory registry behind it."""

from __future__ import annotations

import errno
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from sklearn.linear_model import Ridge

from mlctl.bundle.tensors import Datatype
from mlctl.cli.main import cli
from mlctl.core.home import HOME_VARIABLE
from tests.support.estimators import skops_source
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source, save_rows
from tests.support.tiny_llm import tiny_llm_source, write_texts


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCatalog:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    # The command adds the folder that it runs in.
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = MemoryCatalog([onnx_source(tmp_path / "registered")])
    monkeypatch.setattr("mlctl.registry.mlflow_catalog.MlflowCatalog", lambda: found)
    rows = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    save_rows(tmp_path / "rows.npz", {"x": rows})
    labels = np.arange(64) % 4
    save_rows(tmp_path / "labelled.npz", {"x": rows, "labels": labels})
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["optimize", "tiny", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


SOME = ("--data", "rows.npz", "--recipes", "fp32, fp16", "--prefer", "size")


def test_optimize__report_option__writes_the_page(catalog: MemoryCatalog) -> None:
    result = run(*SOME, "--report", "tiny.html")
    assert result.exit_code == 0, result.output
    assert "models:/tiny-optimized/1 is " in result.stdout
    assert "fp32 finished" in result.stderr
    page = Path("tiny.html").read_text()
    assert " was chosen</h1>" in page
    assert catalog.reports[0].files["report.html"].decode() == page


def test_optimize__a_repeated_run__uses_its_latencies_unless_fresh(catalog: MemoryCatalog) -> None:
    assert "latency finished: fp32, fp16" in run(*SOME).stderr
    again = run(*SOME).stderr
    assert "latency cached: measured on " in again
    assert "--fresh measures again" in again
    fresh = run(*SOME, "--fresh").stderr
    assert "latency finished: fp32, fp16" in fresh
    assert "Latencies are those of one thread of " in fresh
    assert len(catalog.published) >= 1


def test_optimize__min_accuracy__is_a_number_or_the_champions(catalog: MemoryCatalog) -> None:
    labelled = ("--data", "labelled.npz", "--recipes", "fp32")
    odd = run(*labelled, "--min-accuracy", "best")
    assert odd.exit_code == 2
    assert "'--min-accuracy': 'best' is neither a number nor champion." in odd.stderr
    high = run(*labelled, "--min-accuracy", "1.0")
    assert high.exit_code == 5
    assert "is under the limit 1" in high.stdout
    none = run(*labelled, "--min-accuracy", "champion")
    assert "is not registered" in none.stderr
    assert catalog.published == []


def test_optimize__json__stdout_has_only_the_document(catalog: MemoryCatalog) -> None:
    found = document(*SOME)
    assert found["digest"] == catalog.published[0].digest
    assert [each["recipe"] for each in found["variants"]] == ["fp32", "fp16"]
    assert found["source_score"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("catalog")
def test_optimize__values_that_its_source_rejects__are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"x{index}" for index in range(6)]
    rows = np.random.default_rng(0).standard_normal((64, len(names)))
    model = Ridge().fit(pd.DataFrame(rows, columns=names), rows[:, 0])
    source = skops_source(model, tmp_path, dict.fromkeys(names, Datatype.FP64))
    found = MemoryCatalog([source])
    monkeypatch.setattr("mlctl.registry.mlflow_catalog.MlflowCatalog", lambda: found)
    save_rows(tmp_path / "columns.npz", dict(zip(names, rows.T, strict=True)))
    result = CliRunner().invoke(cli, ["optimize", source.name, "--data", "columns.npz"])
    assert result.exit_code == 0, result.output
    assert "x0: a missing value is rejected (" in result.stdout
    assert result.stdout.count(" is rejected (") == 5
    assert "7 more are in the report and --json." in result.stdout


def test_optimize__no_variant_passes__exits_5_with_table_and_report(catalog: MemoryCatalog) -> None:
    result = run(*SOME, "--max-size-mb", "0.000001", "--report", "tiny.html")
    assert result.exit_code == 5
    assert "size in MB" in result.stdout
    assert "no variant meets the goals" in result.stderr
    assert "No variant meets the goals" in Path("tiny.html").read_text()
    assert catalog.published == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_max_accuracy_drop__without_labels__is_refused_before_any_work(
    catalog: MemoryCatalog, more: tuple[str, ...]
) -> None:
    result = run(*SOME, "--max-accuracy-drop", "0.005", *more)
    assert result.exit_code == 2
    assert "accuracy drop of at most 0.005 cannot be judged: the rows have no labels" in (
        result.stderr
    )
    assert "--min-agreement" in result.stderr
    assert "export" not in result.stderr
    assert catalog.published == []


def test_report__that_cannot_be_written__is_refused_before_any_work(
    catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("mlctl.cli.commands.optimize.check_writable", refuse)
    result = run(*SOME, "--report", "tiny.html")
    assert result.exit_code == 2
    assert "cannot access tiny.html: permission denied" in result.stderr
    assert "resolve" not in result.stderr
    assert catalog.published == []


def test_sigterm__while_it_publishes__is_an_interrupt(
    catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(catalog, "publish", terminated)
    before = signal.getsignal(signal.SIGTERM)
    result = run(*SOME)
    assert result.exit_code == 130
    assert "run the same command again to continue" in result.stderr
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.slow
def test_optimize__a_language_model__prints_its_speed_and_perplexity(
    catalog: MemoryCatalog, tmp_path: Path
) -> None:
    write_texts(tmp_path / "texts.jsonl")
    catalog.sources["tiny", "1"] = tiny_llm_source()
    result = run("--data", "texts.jsonl", "--recipes", "gen-int4", "--json")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["variants"]
    assert found["measured"]["score"]["value"] < 1.5
    assert found["measured"]["first_token_ms"] > 0
    assert found["measured"]["tokens_per_second"] > 0
    table = run("--data", "texts.jsonl", "--recipes", "gen-int4").stdout
    assert "First ms  Tokens/s" in table
    assert "ms@" not in table


def test_optimize__a_perplexity_limit_of_another_model__is_rejected(catalog: MemoryCatalog) -> None:
    result = run("--data", "rows.npz", "--max-perplexity-increase", "0.1")
    assert result.exit_code == 2
    assert "only a language model has a perplexity to limit" in result.stderr
    assert not catalog.published


def test_models_import__a_folder_of_another_model__says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    command = ["models", "import", str(tmp_path), "--name", "bert"]
    result = CliRunner().invoke(cli, command)
    assert (
        "it is ViTForImageClassification, not a model for text-generation, text-" in result.stderr
    )
    result = CliRunner().invoke(cli, [*command, "--constant", "sr=1"])
    assert "--signature and --constant are for ONNX files" in result.stderr


def test_models__of_an_empty_registry__names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    result = CliRunner().invoke(cli, ["models"])
    assert result.exit_code == 0
    where = f"sqlite:///{tmp_path}/mlflow.db"
    assert f"The registry {where} has no models." in result.stderr
    assert "MLFLOW_TRACKING_URI" in result.stderr


def test_models__with_a_file_as_home__names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    result = CliRunner().invoke(cli, ["models"])
    assert result.exit_code == 2
    assert f"cannot access {home}" in result.stderr
    assert "set MLCTL_HOME" in result.stderr


def test_optimize__batching_options__are_in_the_bundle(catalog: MemoryCatalog) -> None:
    Path("batching.json").write_text('{"max_rows": 4, "max_queue_ms": 50}')
    digest = document(*SOME, "--batching", "batching.json")["digest"]
    assert [found.digest for found in catalog.published] == [digest]
    manifest = json.loads(Path("home", "bundles", digest, "manifest.json").read_bytes())
    batching = manifest["batching"]
    assert (batching["buckets"], batching["max_queue_ms"]) == ([1, 2, 4], 50)
    Path("batching.json").write_text('{"max_rows": 0}')
    result = run(*SOME, "--batching", "batching.json")
    assert result.exit_code == 2
    assert "--batching: max_rows: " in result.stderr


def test_optimize__dry_run__lists_steps_and_changes_nothing(catalog: MemoryCatalog) -> None:
    found = document(*SOME, "--dry-run")
    assert [step["cached"] for step in found["steps"]] == [False] * 7
    assert found["gates"] == (
        "agreement at least 0.99; centred cosine at least 0.98; relative L2 at most 0.2; then the "
        "best by size"
    )
    text = run(*SOME, "--dry-run")
    assert text.exit_code == 0, text.output
    assert "tiny/1 for cpu: 16 rows calibrate, 48 others judge" in text.stdout
    assert "Gates: agreement at least 0.99; centred cosine at least 0.98" in text.stdout
    assert "int8-trt is left out: it is for cuda, tensorrt" in text.stdout
    assert catalog.published == []


def test_optimize_dry_run__target_is_not_on_this_machine__reports_it(
    catalog: MemoryCatalog,
) -> None:
    found = document("--data", "rows.npz", "--device", "cuda", "--recipes", "fp32", "--dry-run")
    if found["missing"] is None:
        pytest.skip("this machine has CUDA")
    text = run("--data", "rows.npz", "--device", "cuda", "--recipes", "fp32", "--dry-run").stdout
    assert "cuda is not on this machine" in text
    assert catalog.published == []


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "none.npz"), "file none.npz does not exist"),
        (("--data", "rows.npz", "--recipes", "fp23"), "did you mean 'fp32'?"),
        (("--data", "rows.npz", "--recipes", "int8-trt"), "is not for the target cpu"),
        (("--data", "rows.npz", "--recipes", ","), "no recipe is named"),
        (("--data", "rows.npz", "--metric", "acuracy"), "did you mean 'accuracy' or 'auc'?"),
        (("--data", "rows.npz", "--metric", "accuracy"), "needs labels"),
        (("--data", "rows.npz", "--report", "none/report.html"), "does not exist"),
        (("--data", "nomodule:rows"), "no module 'nomodule'"),
        (("--data", "rows.npz", "--max-p95-ms", "0"), "--max-p95-ms"),
        (("--data", "rows.npz", "--transform", "none.py"), "none.py"),
    ],
)
def test_optimize__invalid_value__is_named(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_optimize__functions_in_the_current_folder__are_imported(
    catalog: MemoryCatalog,
) -> None:
    Path("my_own_judging.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    rows = np.load('labelled.npz')\n"
        "    yield {name: rows[name] for name in rows.files}\n"
        "def score(outputs, labels):\n"
        "    print('chatter')\n"
        "    return float((outputs['y'].argmax(axis=1) == labels).mean())\n"
    )
    own = ("--data", "my_own_judging:batches", "--metric", "my_own_judging:score")
    result = run(*own, "--recipes", "fp32", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["source_score"] == found["variants"][0]["measured"]["score"]["value"]
    assert catalog.reports[0].params["metric"] == "my_own_judging:score"


def test_optimize__ctrl_c__says_how_to_continue(
    catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "publish", interrupt)
    result = run(*SOME)
    assert result.exit_code == 130
    assert "run the same command again to continue" in result.stderr
