"""A promotion while answers of a language model are streamed, with real servers and Envoy."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from mlctl.bento.packaging import build_bento
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Revision, RolloutSpec
from tests.support.rollouts import story

pytestmark = [pytest.mark.slow, pytest.mark.serial]
STREAMS = 16
SPEC = RolloutSpec(
    steps=(50, 100),
    step_seconds=0.5,
    min_requests=20,
    max_ttft_ms=20_000.0,
    max_tpot_ms=1000.0,
    max_error_rate=0.05,
    warmup_seconds=0.3,
    bake_seconds=0.5,
    burst_seconds=0.2,
    deadline_seconds=200.0,
)


class Streams:
    """Clients that read one streamed answer after the other; counts whole and broken ones."""

    def __init__(self, port: int) -> None:
        self.whole = 0
        self.broken: list[str] = []
        self.answered_by = set[str]()
        self._url = f"http://127.0.0.1:{port}/v2/models/tiny-llm/generate_stream"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(self._read(client) for _ in range(STREAMS)))

    async def _read(self, client: httpx.AsyncClient) -> None:
        parameters = {"max_tokens": 100, "guided_regex": "[a-z ]{2000}"}
        body = {"text_input": "Count:", "parameters": parameters}
        while not self._stop.is_set():
            try:
                async with client.stream("POST", self._url, json=body) as reply:
                    content = await reply.aread()
            except httpx.HTTPError as error:
                self.broken.append(repr(error))
                continue
            lines = content.decode().splitlines()
            if reply.status_code != 200 or "data: [DONE]" not in lines[-2:]:
                self.broken.append(f"{reply.status_code} {lines[-3:]}")
                continue
            self.whole += 1
            self.answered_by.add(json.loads(lines[0][6:])["model_version"])


@pytest.fixture
def revisions(
    tiny_llm_bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Revision]]:
    """Two Bentos of one model, as if registered twice."""
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "bentoml"))
    made = []
    for version in ("1", "2"):
        root = tmp_path / version
        shutil.copytree(tiny_llm_bundle.root, root)
        source = tiny_llm_bundle.manifest.source.model_copy(update={"version": version})
        bundle = seal(root, tiny_llm_bundle.manifest.model_copy(update={"source": source}))
        tag = build_bento(bundle, {}).tag
        made.append(Revision(tag, bundle.digest, "tiny-llm", version, "models:/tiny-llm/1"))
    yield made
    deployments.down("shop")


def test_promotion__answers_are_streamed__none_is_broken_and_their_times_are_proved(
    revisions: list[Revision],
) -> None:
    live, candidate = revisions
    port = free_ports(1)[0]
    settings = DeploymentSettings(tick_seconds=0.1, champion=("/bin/true",), runs=())
    deployments.up("shop", live, port, settings=settings)

    with Streams(port) as streams:
        rollout = deployments.promote("shop", candidate, SPEC)
        events = list(deployments.follow("shop", rollout))

    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    proofs = [event.body["proofs"] for event in events if event.body.get("proofs")][-1]
    assert min(proofs["ttft_vs_limit"], proofs["tpot_vs_limit"]) >= 1 / SPEC.alpha
    assert streams.broken == []
    assert streams.whole > 2 * STREAMS
    assert streams.answered_by == {live.digest, candidate.digest}
