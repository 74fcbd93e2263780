"""`mlctl promote` where callers would break: refused before anything moves, unless it is meant."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlctl.bundle.verify import VerifiedBundle
from mlctl.cli.commands.promote import _follow, _show_events
from mlctl.cli.main import cli
from mlctl.cli.output import CommandOutput
from mlctl.core.errors import MlctlError
from mlctl.rollout.client.rendering import event_line, verdict_text
from mlctl.rollout.client.revisions import find_revision
from mlctl.rollout.client.traffic import broken_by
from mlctl.rollout.domain.machine.planner import Today, plan
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate, Verdict
from mlctl.rollout.journal import paths, records
from mlctl.rollout.journal.journal import Journal
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.layout.bento_store import SERVER_VERSION
from tests.support.bundles import make_bundle


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Bento store, and an empty journal beside it."""
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def put(store: Path, version: str, *bundles: VerifiedBundle) -> str:
    """Lay a Bento named `shop` out by hand, as BentoML does it; its tag."""
    place = store / "bentos" / "shop" / version
    packed = combine_bundles(bundles, "shop" if len(bundles) > 1 else None)
    for folder, bundle in packed.folders():
        shutil.copytree(bundle.root, place / "src" / folder)
    for name, text in packed.digest_files().items():
        (place / "src" / name).write_bytes(text)
    labels = {"digest": packed.digest, "model": "m", "version": "1", "source": "models:/m/1"}
    labels["server"] = SERVER_VERSION
    document = {"labels": {f"mlctl.{name}": text for name, text in labels.items()}}
    (place / "bento.yaml").write_text(json.dumps(document))
    return f"shop:{version}"


def serve(tag: str) -> None:
    """A deployment of that name which is up by the record; no process runs."""
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), DeploymentSettings(), find_revision(tag))


def refused(*arguments: str) -> str:
    told = CliRunner().invoke(cli, ["promote", "shop", *arguments, "--json"])
    assert told.exit_code == 8, told.output
    error = json.loads(told.stdout)["error"]
    assert error["code"] == "incompatible_interface"
    assert "--allow-breaking" in error["hint"]
    with Journal(paths.journal()) as journal:
        assert journal.rollouts("shop") == ()
    return str(error["message"])


def test_promote__model_with_other_inputs__rejected(store: Path, tmp_path: Path) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop", features=4)))
    wider = put(store, "2", make_bundle(tmp_path / "b", name="shop", features=5))
    told = refused(wider)
    assert "callers of 'shop' would break with shop:2" in told
    assert "'shop': input 'x' is FP32 [-1, 5], was FP32 [-1, 4]" in told
    assert refused(wider, "--full") == refused(wider, "--skip-checks") == told
    for reason in broken_by("shop", find_revision(wider)):
        assert reason in told


def test_promote__bento_lacks_a_model__rejected(store: Path, tmp_path: Path) -> None:
    one, two, three = (make_bundle(tmp_path / name, name=name) for name in ("one", "two", "three"))
    serve(put(store, "1", one, two))
    assert refused(put(store, "2", one, three)).endswith(
        "would break with shop:2: 'two' is missing"
    )


def test_promote__bento_of_an_older_mlctl__is_rejected(store: Path, tmp_path: Path) -> None:
    """Its server would answer 415 to all that the proxy sends."""
    tag = put(store, "1", make_bundle(tmp_path / "a", name="shop"))
    described = store / "bentos" / "shop" / "1" / "bento.yaml"
    described.write_text(described.read_text().replace("mlctl.server", "mlctl.other"))
    with pytest.raises(MlctlError, match="contains the server of another mlctl") as caught:
        find_revision(tag)
    assert "mlctl build" in caught.value.hint


def test_promote__allow_breaking__recorded(store: Path, tmp_path: Path) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop", features=4)))
    wider = find_revision(put(store, "2", make_bundle(tmp_path / "b", name="shop", features=5)))
    with Journal(paths.journal()) as journal:
        rollout = journal.begin("shop", wider, RolloutSpec(breaking=True))
        assert journal.rollout(rollout).candidate == wider
        (requested,) = journal.events("shop", rollout=rollout)
    assert "callers will miss: 'shop': input 'x' is FP32 [-1, 5]" in (event_line(requested) or "")


def test_promote__same_interface__accepted(store: Path, tmp_path: Path) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop")))
    again = find_revision(put(store, "2", make_bundle(tmp_path / "b", name="shop", scale=3.0)))
    with Journal(paths.journal()) as journal:
        (requested,) = journal.events("shop", rollout=journal.begin("shop", again, RolloutSpec()))
    assert requested.body["broken"] == []


def test_promote__candidate_does_not_start__its_log_is_quoted_once(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop")))
    other = find_revision(put(store, "2", make_bundle(tmp_path / "b", name="shop", scale=3.0)))
    why = (
        "the candidate's process ended before it was ready; its log ends:\nfile_altered: model.onnx"
    )
    verdict = Verdict(Action.ROLLBACK, Gate.READY, why)
    with Journal(paths.journal()) as journal:
        rollout = journal.rollout(journal.begin("shop", other, RolloutSpec()))
        epoch = journal.take_over("shop")
        back = replace(
            rollout.progress,
            phase=RolloutPhase.ROLLBACK,
            planned=Outcome.ROLLED_BACK,
            ruling=verdict,
        )
        moved = {"phase": "rollback", "weight": 0, "verdict": asdict(verdict)}
        journal.save(rollout, back, "phase", moved, epoch)
        ended = records.ended_body(rollout, Outcome.ROLLED_BACK, verdict, 1.0)
        journal.save(rollout, replace(back, phase=RolloutPhase.DONE), records.ENDED, ended, epoch)
    with pytest.raises(MlctlError) as caught:
        _follow(CommandOutput(as_json=False), "shop", rollout.id)
    shown = capsys.readouterr().out
    assert "ended before it was ready" in shown
    assert (shown + caught.value.message).count("file_altered: model.onnx") == 1
    assert "\n" not in verdict_text(asdict(verdict))


def test_promote__output_is_a_log__a_quiet_tick_each_half_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = dict.fromkeys(("requests", "errors", "slow", "abandoned", "client_errors"), 0)
    verdict = asdict(Verdict(Action.HOLD, Gate.READY, "it warms up"))
    body = {"phase": "bake", "weight": 100, "window": {"candidate": counts}, "verdict": verdict}
    ticks = [records.JournalEvent(n, "shop", 1, 1000.0 + n, "tick", body) for n in range(70)]
    _show_events(CommandOutput(as_json=False), ticks)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_promote__a_byte_of_the_candidate_is_changed__refused_before_anything_starts(
    store: Path, tmp_path: Path
) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop")))
    tag = put(store, "2", make_bundle(tmp_path / "b", name="shop", scale=3.0))
    (store / "bentos" / "shop" / "2" / "src" / "model" / "model.onnx").write_bytes(b"torn")
    told = CliRunner().invoke(cli, ["promote", "shop", tag, "--skip-checks", "--json"])
    assert json.loads(told.stdout)["error"]["code"] == "file_altered"
    with Journal(paths.journal()) as journal:
        assert journal.rollouts("shop") == ()


def test_promote__proved_score_is_clearly_worse__refused_with_both_scores_unless_forced(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop", accuracy=0.89)))
    worse = put(store, "2", make_bundle(tmp_path / "b", name="shop", accuracy=0.30))
    told = CliRunner().invoke(cli, ["promote", "shop", worse, "--json"])
    error = json.loads(told.stdout)["error"]
    assert (told.exit_code, error["code"]) == (8, "worse_evidence")
    assert "is 0.3 on 1,000 rows" in error["message"]
    assert "0.89" in error["message"]
    assert "--skip-checks" in error["hint"]
    monkeypatch.setattr("mlctl.rollout.client.deployments.ensure_daemon", lambda *_: None)
    forced = CliRunner().invoke(cli, ["promote", "shop", worse, "--skip-checks", "--detach"])
    assert forced.exit_code == 0, forced.output


def test_promote__scores_differ_within_their_noise__judged_by_the_traffic(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(put(store, "1", make_bundle(tmp_path / "a", name="shop", accuracy=0.89)))
    near = put(store, "2", make_bundle(tmp_path / "b", name="shop", accuracy=0.885))
    spec = RolloutSpec()
    monkeypatch.setattr(
        "mlctl.rollout.client.traffic.plan_for", lambda *_: plan(spec, Today(0.0), 0.5)
    )
    told = CliRunner().invoke(cli, ["promote", "shop", near, "--json"])
    assert json.loads(told.stdout)["error"]["code"] == "insufficient_traffic", told.output


def dry_run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli, ["promote", "shop", *arguments, "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_promote_file__fields_and_options__file_over_defaults_and_options_over_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("steps: [10, 100]\nmax_p99_ms: 50\nbake_seconds: 60\nalias: false\n")
    spec = dry_run("-f", str(file), "--bake-time", "2m", "--max-error-rate", "0.02")
    assert (spec["steps"], spec["max_p99_ms"], spec["alias"]) == ([10, 100], 50.0, False)
    assert (spec["bake_seconds"], spec["max_error_rate"]) == (120.0, 0.02)
    assert (spec["shadow_percent"], spec["step_seconds"]) == (20, 30.0)


def test_promote_file__notifications__webhook_option_replaces_them(tmp_path: Path) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("notifications: [https://a.example/x]\n")
    assert dry_run("-f", str(file))["notifications"] == ["https://a.example/x"]
    options = ("--webhook", "https://b.example/y", "--webhook", "https://c.example/z")
    replaced = dry_run("-f", str(file), *options)["notifications"]
    assert replaced == ["https://b.example/y", "https://c.example/z"]


def test_promote_dry_run__printed_file__describes_the_same_rollout(tmp_path: Path) -> None:
    shape = ("--steps", "50,100", "--slo", "fraud-detection", "--min-agreement", "0.98")
    options = (*shape, "--webhook", "https://a.example/x")
    printed = CliRunner().invoke(cli, ["promote", "shop", *options, "--dry-run"])
    file = tmp_path / "rollout.yaml"
    file.write_text(printed.stdout)
    assert dry_run("-f", str(file)) == dry_run(*options)
    first = "# a fault that comes less often than every 110 s is not excluded\n"
    assert printed.stdout.startswith(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step: 3", "unknown field 'step'"),
        ("- 3", "no mapping"),
        ("{", "no readable YAML"),
        ("steps: [50]", "rising percentages"),
    ],
)
def test_promote_file__invalid__rejected(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text(text)
    result = CliRunner().invoke(cli, ["promote", "shop", "-f", str(file), "--dry-run"])
    assert result.exit_code == 2
    assert words in result.output
