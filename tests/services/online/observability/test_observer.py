from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.sampling import Sampling, write_sampling
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.observability.observer import Observer, open_observer
from mlctl.services.online.settings import ServerSettings, load_settings
from tests.services.online.observability.calls import TRACEPARENT, answer
from tests.support.wait import wait_until

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC,)),),
)
X = np.ones((3, 2), np.float32)
Y = {"y": np.ones(3, np.float32)}


def observer(**settings: Any) -> Observer:
    found = open_observer(ServerSettings(**settings), "tiny", "d", SIGNATURE, SystemClock())
    assert found is not None
    return found


def test_open_observer__nothing_enabled__is_none(tmp_path: Path) -> None:
    settings = ServerSettings(sample_dir=tmp_path)
    assert open_observer(settings, "tiny", "d", SIGNATURE, SystemClock()) is None


def test_redact__unknown_tensor__is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"sample_dir": tmp_path, "sample_share": 1}
    observer(**settings, sample_redact="x,y").close()
    assert "REDACT" not in caplog.text
    observer(**settings, sample_redact="x,name").close()
    assert "MLCTL_SAMPLE_REDACT: no tensor is called name; these are: x, y" in caplog.text


def test_begin__request_that_is_not_sampled__is_none(tmp_path: Path) -> None:
    ours = observer(sample_dir=tmp_path / "s", sample_control=tmp_path / "none.json")
    assert not ours.active
    assert ours.begin("http", b"r", TRACEPARENT) is None
    ours.close()
    ours = observer(otlp_endpoint="http://127.0.0.1:9")
    assert ours.begin("http", b"r", TRACEPARENT[:-1] + b"0") is None
    assert ours.begin("http", b"r", None) is None
    assert ours.begin("http", b"r", TRACEPARENT) is not None
    ours.close()


def test_observer__requests__are_written_by_its_thread(tmp_path: Path) -> None:
    path, registry = tmp_path / "log", CollectorRegistry()
    ours = observer(access_log=str(path))
    ours.expose("tiny", registry)
    seen = ours.begin("http", b"r1", None)
    assert seen is not None
    ours.answered(seen, {"x": X}, answer(Y), 0.001, 0.004, 10)
    wait_until(path.read_bytes, what="a line is written while the server runs")
    other = ours.begin("grpc", b"r2", None)
    assert other is not None
    ours.ended(other, asyncio.CancelledError())
    ours.close()
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["rows"], first["protocol"]) == (3, "http")
    assert (second["code"], second["protocol"]) == ("gone", "grpc")
    labels = {"model": "tiny"}
    assert registry.get_sample_value("mlctl_access_log_dropped_total", labels) == 0
    assert registry.get_sample_value("mlctl_samples_dropped_total", labels) is None


def test_observer__one_sink_fails__others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, registry = tmp_path / "s", CollectorRegistry()
    control = tmp_path / "control.json"
    write_sampling(control, Sampling(share=1, flush_seconds=0.01))
    ours = observer(access_log=str(tmp_path / "log"), sample_dir=folder, sample_control=control)
    ours.expose("tiny", registry)
    folder.rmdir()

    def ask(request_id: bytes) -> None:
        seen = ours.begin("http", request_id, None)
        assert seen is not None
        ours.answered(seen, {"x": X}, answer(Y))

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"model": "tiny"})

    ask(b"lost")
    wait_until(lambda: value("mlctl_samples_dropped_total") == 1)
    ask(b"lost, too")
    wait_until(lambda: value("mlctl_samples_dropped_total") == 2)
    assert caplog.text.count("Recorder fails") == 1  # once a minute
    folder.mkdir()
    ask(b"kept")
    ours.close()
    assert value("mlctl_sampled_rows_total") == 3
    assert len((tmp_path / "log").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"MLCTL_SAMPLE_SHARE": "0.1"}, "MLCTL_SAMPLE_SHARE: .*MLCTL_SAMPLE_DIR"),
        ({"MLCTL_SAMPLE_CONTROL": "/c"}, "MLCTL_SAMPLE_CONTROL: .*MLCTL_SAMPLE_DIR"),
        ({"MLCTL_SAMPLE_DIR": "/s", "MLCTL_SAMPLE_SHARE": "2"}, "MLCTL_SAMPLE_SHARE"),
        ({"MLCTL_OTLP_ENDPOINT": "collector:4317"}, "MLCTL_OTLP_ENDPOINT"),
    ],
)
def test_settings__contradictory__are_rejected(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MlctlError, match=named):
        load_settings()


def test_settings__names_to_redact__are_separated_by_commas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLCTL_SAMPLE_REDACT", "name, e-mail ,")
    assert load_settings().sample_redact == ("name", "e-mail")


def test_open_observer__exporter_is_not_installed__names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = ServerSettings(otlp_endpoint="http://127.0.0.1:9")
    with pytest.raises(MlctlError, match="OTLP exporter") as caught:
        open_observer(settings, "tiny", "d", SIGNATURE, SystemClock())
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
