from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlctl.bento.manifests.resources import estimate, read_bench
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.figures import LatencyRecord, ServerUse, summarize

DIGEST = "d" * 64


def run(clients: int, answered: int, cpu: float | None, memory: int | None) -> dict[str, Any]:
    record = LatencyRecord()
    for _ in range(answered):
        record.add(0.001, "ok")
    use = ServerUse(1.0, cpu, memory)
    return summarize(record, 2.0, clients=clients, use=use).as_dict()


def written(path: Path, runs: list[Any], **more: Any) -> Path:
    document = {"model": "shop", "version": DIGEST, "runs": runs, "ready_seconds": 12.5, **more}
    path.write_text(json.dumps(document))
    return path


def test_read_bench__several_runs__takes_the_fastest_without_failures(tmp_path: Path) -> None:
    failed = {**run(64, 9000, 1.0, 1 << 30), "errors": {"503 queue_full": 1}}
    runs = [run(1, 100, 0.5, 100 << 20), run(16, 4000, 3.0, 200 << 20), failed]
    found = read_bench(written(tmp_path / "b.json", runs), {DIGEST}, gpu=True)
    # 1.5 CPUs and 200 MiB were used, 64 MiB of files are in memory, too.
    assert (found.cpu, found.memory, found.gpus) == ("1800m", "384Mi", 1)
    assert found.start_seconds == 50
    assert found.measured
    assert "1.50 CPUs and 200 MiB at 2000 requests per second from 16 clients" in found.reason


def test_read_bench__open_loop__names_the_rate(tmp_path: Path) -> None:
    at_rate = {**run(1, 400, 1.0, 64 << 20), "clients": None, "rate": 200.0}
    found = read_bench(written(tmp_path / "b.json", [at_rate]), {DIGEST}, gpu=False)
    assert "an open loop at 200/s" in found.reason


@pytest.mark.parametrize(
    ("runs", "more", "reason"),
    [
        ([run(1, 10, 1.0, 1 << 20)], {"version": "e" * 64}, "this Bento holds dddddddddddd"),
        ([run(1, 10, None, None)], {}, "no run without failures"),
        ([run(1, 10, 1.0, None)], {}, "no run without failures"),
        ([], {}, "no run without failures"),
        ([{"errors": {}}], {}, "no run without failures"),
        ([7], {}, "is not the JSON of a benchmark"),
        (
            [{**run(1, 10, 1.0, 1 << 20), "per_second": "fast"}],
            {},
            "is not the JSON of a benchmark",
        ),
    ],
)
def test_read_bench__unusable_file__is_rejected(
    tmp_path: Path, runs: list[Any], more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        read_bench(written(tmp_path / "b.json", runs, **more), {DIGEST}, gpu=False)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "mlctl bench NAME:VERSION --json" in caught.value.hint


def test_estimate__larger_model__needs_more_memory() -> None:
    small, large = (estimate(size << 20, 2, gpu=False) for size in (1, 1000))
    assert small.cpu == "2000m"
    assert large.memory_mib - small.memory_mib == pytest.approx(2 * 3 * 999, abs=64)
    assert not small.measured
    assert "estimates" in small.reason
