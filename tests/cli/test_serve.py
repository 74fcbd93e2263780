"""`mlctl serve` up to where it becomes the server, and what `mlctl up` refuses like it."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from mlctl import Client
from mlctl.bento.packaging import build_bento
from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.core.ports import free_ports
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mlctl(tmp_path_factory: pytest.TempPathFactory) -> Mlctl:
    """A state directory with the Bento `tiny`, and `torn`, in which one byte is changed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(home / "bentoml"))
        build_bento(make_bundle(home / "tiny"), {})
        torn = build_bento(make_bundle(home / "torn", name="torn"), {"mlctl.model": "m"})
    model = torn.path / "src" / "model" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    return Mlctl(home)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--token-file", "none"), "none cannot be read: No such file"),
        (("--token-file", "short"), "line 1 of the token file"),
        (("--tls-cert", "short"), "both a certificate and its key"),
        (("--tls-cert", "short", "--tls-key", "short"), "TLS cannot use"),
    ],
)
def test_serve__unusable_option__fails_before_anything_starts(
    mlctl: Mlctl, options: tuple[str, ...], said: str
) -> None:
    (mlctl.home / "short").write_text("hunter2")
    done = mlctl.run("serve", "tiny", *options)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n", " ")
    assert "hunter2" not in done.stdout + done.stderr
    assert done.stdout == ""


def test_serve__port_in_use__fails_before_anything_starts(mlctl: Mlctl) -> None:
    (http,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        done = mlctl.run("serve", "tiny", "--port", str(http), "--grpc-port", str(taken))
    assert done.returncode == ERROR_TABLE[ErrorCode.PORT_TAKEN].exit_code
    assert f"127.0.0.1:{taken}" in done.stderr
    assert done.stdout == ""


def test_serve__one_port_for_two_endpoints__is_rejected(mlctl: Mlctl) -> None:
    (port,) = map(str, free_ports(1))
    done = mlctl.run("serve", "tiny", "--port", port, "--grpc-port", port)
    assert done.returncode == ERROR_TABLE[ErrorCode.PORT_TAKEN].exit_code
    assert f"127.0.0.1:{port}" in done.stderr


def test_serve__a_bento__answers_with_its_own_bundle(mlctl: Mlctl) -> None:
    """The command's own mlctl has no bundle beside it; that of the Bento has."""
    (port,) = free_ports(1)
    with subprocess.Popen(
        mlctl.command("serve", "tiny", "--port", str(port)),
        env=mlctl.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        with Client(f"http://127.0.0.1:{port}") as client:
            wait_until(lambda: server.poll() is not None or client.ready(), what="it is ready")
            assert server.poll() is None
            assert client.metadata("tiny")["inputs"][0]["name"] == "x"
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode in {0, 130}


def test_serve__ctrl_c_while_it_starts__is_one_line_and_130(mlctl: Mlctl) -> None:
    """The signal arrives when Python starts or BentoML is imported, which takes a second."""
    (port,) = map(str, free_ports(1))
    with subprocess.Popen(
        mlctl.command("serve", "tiny", "--port", port),
        env=mlctl.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        process = psutil.Process(server.pid)
        wait_until(
            lambda: "mlctl.cli.bentoml_server" in process.cmdline(), what="the server starts"
        )
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors.strip()) == (130, "Error: interrupted")


def test_serve__invalid_environment__is_rejected(
    mlctl: Mlctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLCTL_TLS_KEY", str(tmp_path / "key.pem"))
    done = mlctl.run("serve", "tiny")
    assert done.returncode == 2
    assert "MLCTL_TLS_CERT" in done.stderr


@pytest.mark.parametrize("command", [("serve", "tiny"), ("up", "shop", "tiny")], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "callers need no token"),
        (("--tls-cert", "none.pem"), "both a certificate and its key"),
    ],
)
def test_serve__public_address_without_a_token__is_rejected(
    mlctl: Mlctl, command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    done = mlctl.run(*command, *options)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.replace("\n", " ")
    assert done.stdout == ""


def test_up__kubernetes_with_a_certificate__is_rejected(mlctl: Mlctl) -> None:
    named = ("--target", "kubernetes", "--tls-cert", "c.pem", "--tls-key", "k.pem")
    done = mlctl.run("up", "shop", "tiny", *named)
    assert done.returncode == 2
    assert "the Gateway has the certificate" in done.stderr.replace("\n", " ")


def test_serve__a_byte_of_the_model_is_changed__refused_before_a_url_is_printed(
    mlctl: Mlctl,
) -> None:
    (port,) = map(str, free_ports(1))
    done = mlctl.run("serve", "torn", "--port", port)
    assert done.returncode == ERROR_TABLE[ErrorCode.FILE_ALTERED].exit_code, done.stderr
    assert "model.onnx" in done.stderr
    assert done.stdout == ""
