"""`mlctl manifests` as a user types it, for a real Bento."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner, Result

from mlctl.bento.packaging import BuiltBento
from mlctl.cli.main import cli
from tests.bento.manifests.example_plans import IMAGE
from tests.support.schemas import faults

pytestmark = pytest.mark.slow


@pytest.fixture
def bento(built: BuiltBento, store_home: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltBento:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    return built


def run(bento: BuiltBento, platform: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["manifests", platform, bento.tag, *arguments])


def test_manifests_command__kubernetes__writes_and_reports_the_files(
    bento: BuiltBento, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    given = ("kubernetes", "--image", IMAGE, "--gateway", "infra/public")
    done = run(bento, *given, "--out", str(folder), "--max-replicas", "4", "--json")
    assert done.exit_code == 0, done.output
    reported = json.loads(done.output)
    assert reported["digest"] == bento.digest
    assert reported["measured"] is False
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == reported["files"]
    found = [each for text in written.values() for each in yaml.safe_load_all(text)]
    assert {each["kind"] for each in found} == {
        "ConfigMap", "Deployment", "HTTPRoute", "NetworkPolicy", "PodDisruptionBudget",
        "ScaledObject", "Service", "ServiceMonitor",
    }  # fmt: skip
    assert not [fault for each in found for fault in faults(each)]
    again = run(bento, *given, "--out", str(folder), "--max-replicas", "4")
    assert again.exit_code == 0, again.output
    assert "estimates" in again.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == written


def test_manifests_command__bench_of_this_bento__sizes_it(
    bento: BuiltBento, tmp_path: Path
) -> None:
    one: dict[str, Any] = {"clients": 8, "errors": {}, "per_second": 900.0}
    runs = [{**one, "per_cpu_second": 600.0, "memory_bytes": 300 << 20}]
    bench = {"version": bento.digest, "runs": runs, "ready_seconds": 3.0}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench))
    done = run(bento, "compose", "--image", IMAGE, "--bench", str(path))
    assert done.exit_code == 0, done.output
    (document,) = yaml.safe_load_all(done.stdout)
    limits = document["services"]["tiny"]["deploy"]["resources"]
    assert limits["reservations"] == {"cpus": "1.8"}
    assert limits["limits"] == {"memory": "576M"}


def test_manifests_command__without_output__prints(bento: BuiltBento) -> None:
    kserve = run(bento, "kserve", "--mode", "knative", "--image", IMAGE)
    assert not faults(yaml.safe_load(kserve.stdout))
    cloud = yaml.safe_load(run(bento, "bentocloud").stdout)
    assert cloud["bento"] == bento.tag
    assert list(cloud["services"]) == ["tiny"]


def test_manifests_command__without_an_image__hint_names_containerize(bento: BuiltBento) -> None:
    done = run(bento, "kubernetes", "--json")
    error = json.loads(done.output)["error"]
    assert error["code"] == "invalid_input"
    assert f"mlctl containerize {bento.tag}" in error["hint"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("compose", "--gateway", "g"), "No such option '--gateway'"),
        (("bentocloud", "--image", IMAGE), "No such option '--image'"),
        (("kubernetes", "--canary", "5"), "No such option '--canary'"),
        (("kubernetes", "--spot"), "No such option '--spot'"),
        (("aws-batch", "--schedule", "@daily"), "No such option '--schedule'"),
        (("job", "--layout", "single"), "No such option '--layout'"),
        (("stream", "--schedule", "@daily"), "No such option '--schedule'"),
        (("kubernetes", "--", "--in", "rows"), "unexpected extra arguments"),
        (("kserve", "--stable-image", "x"), "give --canary"),
        (("job", "--image", IMAGE, "--", "--in", "s3://rows/"), "Missing option '--out'"),
    ],
)
def test_manifests_command__options_of_another_platform__are_rejected(
    bento: BuiltBento, arguments: tuple[str, ...], reason: str
) -> None:
    done = run(bento, *arguments)
    assert done.exit_code == 2
    assert reason in done.output


def test_manifests_command__batch_runner__writes_a_job_of_the_options_after_the_dashes(
    bento: BuiltBento,
) -> None:
    given = ("job", "--image", IMAGE, "--cpu", "4")
    rows = ("--in", "s3://data/rows/", "--out", "s3://data/scores/", "--grace", "50s")
    done = run(bento, *given, "--schedule", "@daily", "--", *rows)
    assert done.exit_code == 0, done.output
    cron, network = yaml.safe_load_all(done.stdout)
    assert (cron["kind"], network["kind"]) == ("CronJob", "NetworkPolicy")
    assert not faults(cron)
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["batch", *rows, "--threads", "4"]
    assert pod["terminationGracePeriodSeconds"] == 60
    assert "Put $(JOB_NAME) into --out" in done.stderr


@pytest.mark.parametrize(
    ("target", "option", "name"),
    [
        (
            "aws-batch",
            ("--job-role", "arn:aws:iam::123456789012:role/scorer"),
            "job-definition.json",
        ),
        ("airflow", ("--schedule", "@daily"), "tiny_batch_dag.py"),
    ],
)
def test_manifests_command__batch_elsewhere__writes_its_file(
    bento: BuiltBento, tmp_path: Path, target: str, option: tuple[str, ...], name: str
) -> None:
    given = (target, "--image", IMAGE, "--cpu", "4", *option)
    rows = ("--in", "s3://data/rows/", "--out", "s3://data/scores/")
    done = run(bento, *given, "--out", str(tmp_path), "--", *rows)
    assert done.exit_code == 0, done.output
    text = (tmp_path / name).read_text()
    assert "--threads" in text
    assert bento.digest in text
    assert ("Put {{ ds }} into --out" in done.stderr) == (target == "airflow")


def test_manifests_command__stream_runner__scales_with_the_lag(bento: BuiltBento) -> None:
    given = ("stream", "--image", IMAGE, "--replicas", "0")
    urls = ("--in", "kafka://broker:9092#orders", "--out", "kafka://broker:9092#scores")
    done = run(bento, *given, "--max-replicas", "8", "--", *urls)
    assert done.exit_code == 0, done.output
    found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert not [fault for each in found.values() for fault in faults(each)]
    assert found["ScaledObject"]["spec"]["triggers"][0]["metadata"]["topic"] == "orders"
