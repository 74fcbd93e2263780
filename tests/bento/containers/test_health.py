"""The health check of an image, in a container that has no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bento.containers import health
from mlctl.core.ports import free_ports


@pytest.mark.parametrize(("mode", "code"), [("batch", 0), ("stream", 0), ("serve", 1)])
def test_health__container_of_a_runner__is_healthy_without_a_server(
    mode: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tmp_path / "cmdline"
    arguments.write_bytes(f"python\0-m\0cli.runners\0{mode}\0--in\0rows\0".encode())
    monkeypatch.setattr(health, "_FIRST_PROCESS", arguments)
    monkeypatch.setenv("BENTOML_PORT", str(free_ports(1)[0]))
    assert health.main() == code
