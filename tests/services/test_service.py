from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn
import uvicorn.config
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.services.layout.bento_layout import digest_file
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.grpc.http2.frames import ACK, HEADERS, PING, frame
from mlctl.services.online.grpc.http2.head import OK_TRAILERS
from mlctl.services.online.grpc.http2.hpack import encode
from mlctl.services.online.http.connection.accept_loop import AcceptingLoop
from mlctl.services.online.http.connection.protocol import InferProtocol
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.service_bundle import find_bundles
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.services.online.grpc.http2.conftest import Raw, framed, head
from tests.support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
OK = encode(OK_TRAILERS)
# BentoML's own code calls what its dependencies have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def seam(store_home: Path) -> Any:
    """Import the seam where BentoML's imports may warn, with a home of its own."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("BENTOML_HOME", str(store_home))
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("mlctl.services.online.server.seam")


def test_find_bundles__variable_and_folder__variable_wins(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    assert find_bundles(ServerSettings(bundle=bundle.root), tmp_path).digest == bundle.digest
    bundle.root.rename(tmp_path / "model")
    assert find_bundles(ServerSettings(bundle=None), tmp_path).digest == bundle.digest


@pytest.mark.parametrize("written", [b"0" * 64, b"", b"\xff\xfe"])
def test_find_bundles__another_digest_beside__is_rejected(
    bundle: VerifiedBundle, tmp_path: Path, written: bytes
) -> None:
    model = bundle.root.rename(tmp_path / "model")
    digest_file(model).write_text(bundle.digest + "\n")
    assert find_bundles(ServerSettings(bundle=None), tmp_path).digest == bundle.digest
    digest_file(model).write_bytes(written)
    with pytest.raises(MlctlError) as caught:
        find_bundles(ServerSettings(bundle=None), tmp_path)
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH
    assert find_bundles(ServerSettings(bundle=model), tmp_path).digest == bundle.digest


def test_find_bundles__none__says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        find_bundles(ServerSettings(bundle=None), tmp_path)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID
    assert "mlctl pull NAME --out model" in caught.value.hint
    assert "MLCTL_BUNDLE" in caught.value.hint


def test_build_service__predict__has_a_typed_argument_per_input(
    seam: Any, bundle: VerifiedBundle
) -> None:
    service = seam.build_service(bundle, ServerSettings())
    assert service.name == "tiny"
    (route,) = service.schema()["routes"]
    assert route["route"] == "/predict"
    assert route["batchable"] is False
    assert route["input"]["properties"]["x"]["dtype"] == "float32"


def test_build_service__asgi_application__has_ours_in_front(
    seam: Any, bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = uvicorn.config.HTTP_PROTOCOLS["auto"]
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", before)  # put back afterwards
    monkeypatch.setitem(uvicorn.config.LOOP_FACTORIES, "auto", None)
    app = seam.build_service(bundle, ServerSettings()).to_asgi()
    assert isinstance(app, seam.Front)
    # This is how BentoML makes it: after `to_asgi`, and without naming a protocol or a loop.
    config = uvicorn.Config(app, log_config=None)
    config.load()
    protocol: Any = config.http_protocol_class
    assert issubclass(protocol, InferProtocol)
    assert config.get_loop_factory() is AcceptingLoop
    assert f"/v2/models/tiny/versions/{bundle.digest}/infer".encode() in protocol.handlers


def test_stop__grpc_call_in_flight__is_answered(
    seam: Any, bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    request = methods()["ModelInfer"].request(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    monkeypatch.setattr(seam, "_GRPC_GRACE_SECONDS", 0.0)
    # Too slow to run on the event loop, by what the warm-up is told.
    monkeypatch.setattr(
        "mlctl.services.online.models.served_model.warm_up", lambda *_: {1: 0.1, 32: 0.1}
    )

    async def main() -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(_scorer: Scorer, inputs: Any) -> Any:
            loop.call_soon_threadsafe(asked.set)
            assert gate.wait(20)
            return {"y": inputs["x"]}

        class Model(seam.Worker):  # type: ignore[misc]
            serving = ServedModel(
                bundle, ServerSettings(grpc_port=port), registry=CollectorRegistry()
            )

        worker = Model()
        await worker.start()
        monkeypatch.setattr(Scorer, "run", slow)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")(request.SerializeToString())
            await asyncio.wait_for(asked.wait(), 20)
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)
            assert not worker.serving.ready
            gate.set()
            assert await call
            await stopping

    (port,) = free_ports(1)
    asyncio.run(main())


def test_stop__grpc_client_continues__is_answered_until_the_goaway(
    seam: Any, bundle: VerifiedBundle
) -> None:
    """Until they know of it, whatever they ask is answered."""
    request = methods()["ModelInfer"].request(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))

    async def main() -> None:
        class Model(seam.Worker):  # type: ignore[misc]
            serving = ServedModel(
                bundle, ServerSettings(grpc_port=port), registry=CollectorRegistry()
            )

        worker = Model()
        await worker.start()
        raw = await Raw.open(port)
        body = framed(request.SerializeToString())
        assert (await raw.trailers(raw.ask(head(), body)))[b"grpc-status"] == b"0"
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        assert not worker.serving.ready
        # Asked when the stop has begun, of which this client has not read yet.
        asked = [raw.ask(head(), body) for _ in range(3)]
        data, farewell = b"", frame(PING, 0, 0, b"mlctlend")
        while chunk := await asyncio.wait_for(raw.reader.read(1 << 16), PATIENCE_SECONDS):
            data += chunk
            if farewell in data:
                raw.writer.write(frame(PING, ACK, 0, b"mlctlend"))
                data = data.replace(farewell, b"")
        for stream in asked:
            assert frame(HEADERS, 5, stream, OK)[3:] in data
        await stopping
        raw.close()

    (port,) = free_ports(1)
    asyncio.run(main())


@pytest.mark.slow
def test_import__no_bundle__exits_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import mlctl.services.service"],
        cwd=ROOT,
        env={**os.environ, "MLCTL_BUNDLE": str(tmp_path), "BENTOML_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == MlctlError(ErrorCode.MANIFEST_INVALID, "").spec.exit_code
    assert "there is no bundle" in done.stderr
    assert "Traceback" not in done.stderr


# A supervisor starts the workers; what serves would be loaded once more, for nothing.
SUPERVISOR = (None, {"torch", "mlflow", "onnxruntime", "grpc", "mlctl.services.online.server.seam"})
WORKER = (1, {"torch", "mlflow"})


@pytest.mark.slow
@pytest.mark.parametrize(("index", "unused"), [SUPERVISOR, WORKER])
def test_import__process_of_a_server__loads_only_what_it_needs(
    bundle: VerifiedBundle, tmp_path: Path, index: int | None, unused: set[str]
) -> None:
    code = (
        f"import sys, bentoml; bentoml.server_context.worker_index = {index}; "
        "from mlctl.services.service import service; "
        f"print(*set({unused}) & set(sys.modules), service.schema()['routes'][0]['route'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "MLCTL_BUNDLE": str(bundle.root), "BENTOML_HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["/predict"]


@pytest.mark.slow
def test_start__with_a_misspelt_setting__warns(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import mlctl.services.service"],
        env={**os.environ, "MLCTL_WORKER": "2", "MLCTL_BUNDLE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "Warning: MLCTL_WORKER is not a setting of mlctl" in done.stderr
