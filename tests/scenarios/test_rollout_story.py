"""Promotions as a user types them, with real Bentos, their recorders and Envoy's mirror."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlctl.core.ports import free_ports
from mlctl.examples.digits.data import load_split
from mlctl.examples.digits.traffic import LoadThread, TrafficWindow, request_body
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.predictions import PredictionStore
from mlctl.services.protocol.messages import methods
from tests.scenarios.conftest import train_digits
from tests.support.command_line import Mlctl
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.serial,
    pytest.mark.timeout(400),
]

RATE = 200.0
# Short steps, and limits that a good variant keeps on a busy machine as well.
QUICK = (
    *("--steps", "50,100", "--step-time", "1s", "--bake-time", "2s", "--min-requests", "20"),
    *("--shadow-percent", "50", "--shadow-time", "2s"),
    *("--max-error-rate", "0.05", "--alpha", "0.01", "--burst", "1s", "--deadline", "200s"),
)


@dataclass(frozen=True, slots=True)
class Story:
    """A deployment under traffic; a good and a wrong variant to promote."""

    mlctl: Mlctl
    url: str
    traffic: LoadThread
    live: dict[str, Any]
    good: dict[str, Any]
    wrong: dict[str, Any]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mlctl.json("status", "shop")["deployments"][0]
        return found

    def phase(self) -> RolloutPhase | None:
        """Read from the journal: a command for each poll would take a core."""
        with Journal(self.mlctl.home / "deployments" / "journal.db") as journal:
            rollout = journal.active("shop")
        return None if rollout is None else rollout.progress.phase

    def halved(self) -> bool:
        """Whether each slot gets half of the traffic: a move is recorded before it holds."""
        return set(self.status()["weights"].values()) == {50}

    def last(self) -> dict[str, Any]:
        newest: dict[str, Any] = self.mlctl.json("history", "shop")["rollouts"][0]
        return newest

    def samples(self) -> list[Path]:
        """Return the recorded requests, and the file that switches recording on."""
        folder = self.mlctl.home / "deployments" / "shop" / "samples"
        return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    mlctl = Mlctl(tmp_path_factory.mktemp("story"))
    data = mlctl.home / "eval.npz"
    train_digits(mlctl, data)
    live, good = (_built(mlctl, data, recipe) for recipe in ("fp32", "fp16"))
    wrong = _build_wrong(mlctl, Path(good["bundle"]))
    port = free_ports(1)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCTL_PRECOMPUTED", "scores")
        mlctl.json("up", "shop", live["tag"], "--port", str(port), "--replicas", "2")
    url = f"http://127.0.0.1:{port}/v2/models/digits/infer"
    try:
        with LoadThread(url, load_split()[1].images, RATE) as traffic:
            yield Story(mlctl, url, traffic, live, good, wrong)
    finally:
        mlctl.run("down", "shop")


def _built(mlctl: Mlctl, data: Path, recipe: str) -> dict[str, Any]:
    mlctl.json("optimize", "models:/digits@candidate", "--data", str(data), "--recipes", recipe)
    built: dict[str, Any] = mlctl.json("build", "digits")
    return built


def _build_wrong(mlctl: Mlctl, bundle: Path) -> dict[str, Any]:
    from mlctl.bento.packaging import build_bento
    from mlctl.bundle.verify import VerifiedBundle
    from tests.support.wrong import negated

    made: VerifiedBundle = negated(bundle, mlctl.home / "wrong")
    labels = {"model": "digits-optimized", "version": "3", "source": "models:/digits/1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCTL_HOME", str(mlctl.home))
        patch.delenv("BENTOML_HOME", raising=False)
        tag = build_bento(made, {f"mlctl.{name}": text for name, text in labels.items()}).tag
    return {"tag": tag, "digest": made.digest}


def _served(window: TrafficWindow, revision: dict[str, Any]) -> int:
    return window.answered_by[revision["digest"]]


def test_request_id__on_all_protocols__comes_back(story: Story) -> None:
    """Callers keep the id of an answer for the label that arrives later."""
    base = story.url.removesuffix("/v2/models/digits/infer")
    image = load_split()[1].images[0]
    bodies = {
        story.url: request_body(image),
        f"{base}/predict": json.dumps({"image": [image.tolist()]}).encode(),
        f"{base}/invocations": request_body(image),
        f"{base}/v2/models/none/infer": request_body(image),
    }
    for url, body in bodies.items():
        given = httpx.post(url, content=body, headers={"x-request-id": "mine-1", **_JSON})
        assert given.headers["x-request-id"] == "mine-1", url
        made = httpx.post(url, content=body, headers=_JSON)
        assert len(made.headers["x-request-id"]) > 10, url
    request = methods()["ModelInfer"].request()
    request.model_name = "digits"
    request.inputs.add(name="image", datatype="FP32", shape=[1, 1, 8, 8])
    request.raw_input_contents.append(image.tobytes())
    with grpc.insecure_channel(base.removeprefix("http://")) as channel:  # type: ignore[no-untyped-call]
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        _, call = infer.with_call(
            request.SerializeToString(), metadata=[("x-request-id", "mine-2")], timeout=10
        )
    assert ("x-request-id", "mine-2") in [(key, value) for key, value in call.initial_metadata()]


_JSON = {"content-type": "application/json"}


def test_labels__arrive_later__take_back_what_they_prove_wrong(story: Story) -> None:
    """No copy is compared: only the labels show that the candidate's predictions are wrong.

    The commands are those of docs/labels.md.
    """
    unshadowed = (*QUICK, "--shadow-percent", "0", "--min-accuracy", "0.9")
    story.mlctl.json("promote", "shop", story.wrong["tag"], *unshadowed, "--detach")
    wait_until(lambda: story.phase() is RolloutPhase.SHIFT, what="half of the traffic is on it")
    labels = dict[str, int]()

    def recorded_enough() -> bool:
        numbers = range(len(labels), len(labels) + 60)
        labels.update(_send_labelled(story, numbers))
        with PredictionStore(_shop(story) / "predictions.db") as store:
            return len(store.find(list(labels))) >= 300

    wait_until(recorded_enough, what="enough of the labelled requests are recorded")
    held = story.status()["rollout"]
    assert (held["phase"], held["accuracy"]["candidate"]["labelled"]) == ("shift", 0)
    lines = [f"{request_id},{label}" for request_id, label in labels.items()]
    (story.mlctl.home / "labels.csv").write_text("\n".join(["request_id,label", *lines, "x,1"]))
    report = story.mlctl.json("feedback", "shop", "labels.csv")
    assert report["joined"] >= 300
    assert (report["labels"], report["repeated"]) == (len(labels) + 1, 0)
    accuracy = {each["digest"]: each["accuracy"] for each in report["revisions"]}
    assert accuracy[story.live["digest"]] > 0.9
    assert accuracy[story.wrong["digest"]] < 0.2

    wait_until(lambda: story.phase() is None, what="the rollout ends")
    ended = story.last()
    assert (ended["outcome"], ended["verdict"]["gate"]) == ("rolled_back", "accuracy_vs_limit")
    assert "with a label were answered wrong (limit 10 %)" in ended["verdict"]["why"]
    assert ended["accuracy"]["candidate"]["labelled"] > 100


def _shop(story: Story) -> Path:
    return story.mlctl.home / "deployments" / "shop"


def _send_labelled(story: Story, numbers: range) -> Iterator[tuple[str, int]]:
    """Send one image per number; its request id and true digit."""
    rows = load_split()[1]
    with httpx.Client(timeout=10) as client:
        for number in numbers:
            image, label = rows.images[number % 500], int(rows.labels[number % 500])
            headers = {**_JSON, "x-request-id": f"order-{number}"}
            answer = client.post(story.url, content=request_body(image), headers=headers)
            yield answer.headers["x-request-id"], label
            time.sleep(0.02)


def test_rollouts__of_one_deployment__promote_reject_rollback_and_end(story: Story) -> None:
    """Run five steps on one deployment; each starts where the one before ended."""
    promote_the_good_variant(story)
    reject_the_wrong_variant(story)
    check_the_history(story)
    roll_back_by_hand(story)
    end_the_deployment_during_a_shadow(story)


def promote_the_good_variant(story: Story) -> None:
    """Two replicas get the traffic after a shadow that was paused once; no request fails."""
    (shop,) = story.mlctl.json("ps", "shop")["deployments"]
    roles = {each["role"] for each in shop["processes"]}
    assert {"blue/0", "blue/1", "proxy", "daemon"} <= roles
    plan = story.mlctl.json("promote", "shop", "--plan", *QUICK)
    assert plan["ends"]
    assert [step["phase"] for step in plan["steps"]] == ["shadow", "shift", "bake"]

    story.traffic.cut()
    begun = story.mlctl.json("promote", "shop", story.good["tag"], *QUICK, "--detach")
    wait_until(lambda: story.phase() is RolloutPhase.SHADOW, what="the shadow begins")
    paused = story.mlctl.json("pause", "shop")
    assert (paused["phase"], paused["weight"]) == ("paused", 0)
    assert story.mlctl.json("resume", "shop")["phase"] == "shadow"
    assert _served(story.traffic.cut(), story.good) == 0, "no user gets an answer in the shadow"
    wait_until(lambda: story.phase() is None, what="the rollout ends")

    ended = story.last()
    assert (ended["id"], ended["outcome"]) == (begun["rollout"], "promoted"), ended
    window = story.traffic.cut()
    assert window.failed == 0
    assert _served(window, story.good) > 0
    assert story.status()["live"]["digest"] == story.good["digest"]
    assert story.samples() == []
    wait_until(lambda: _champion(story) == story.good["digest"], what="the alias is written")
    # The rollouts that follow need no second replica, whose start takes seconds.
    scaled = story.mlctl.run("scale", "shop", "--replicas", "1")
    assert scaled.returncode == 0, scaled.stderr


def _champion(story: Story) -> str | None:
    rows = story.mlctl.json("models")["models"]
    return next(
        (row["digest"] for row in rows if row["digest"] and "champion" in row["aliases"]), None
    )


def reject_the_wrong_variant(story: Story) -> None:
    """Only its predictions are wrong: it is as fast, and fails no request. No user gets one."""
    story.traffic.cut()
    rejected = story.mlctl.run("promote", "shop", story.wrong["tag"], *QUICK)
    assert rejected.returncode == 10, rejected.stdout + rejected.stderr
    assert "disagreement" in rejected.stderr
    window = story.traffic.cut()
    assert (window.failed, _served(window, story.wrong)) == (0, 0)
    ended = story.last()
    assert (ended["outcome"], ended["verdict"]["gate"]) == ("rolled_back", "disagreement")
    assert ended["exposed"] is None
    kept = story.mlctl.home / "deployments" / "shop" / "disagreements" / f"{ended['id']}.parquet"
    row = pq.read_table(kept).to_pylist()[0]
    assert len(row["live.logits"]) == 10
    assert row["candidate.logits"][0] == pytest.approx(-row["live.logits"][0], abs=0.01)
    assert row["in.image"]
    assert str(kept) in rejected.stdout


def check_the_history(story: Story) -> None:
    """It shows both rollouts, the model that was live at a moment, and where it came from."""
    outcomes = [each["outcome"] for each in story.mlctl.json("history", "shop")["rollouts"]]
    assert outcomes[:2] == ["rolled_back", "promoted"]
    rolled_back = story.last()
    then = datetime.fromtimestamp(rolled_back["created"] + 0.5, tz=UTC).isoformat()
    moment = story.mlctl.json("history", "shop", "--at", then)
    assert moment["live"]["digest"] == story.good["digest"]
    chain = story.mlctl.json("show", story.good["digest"][:12])
    assert chain["source"]["uri"] == "models:/digits/1"
    assert chain["serves"] == ["shop"]
    assert [each["outcome"] for each in chain["rollouts"]] == ["promoted"]
    assert "champion" in chain["optimized"]["aliases"]


def _precompute(story: Story, revision: dict[str, Any], images: dict[str, int]) -> None:
    """Store the answers of `revision` to held-out images (by number) under the keys."""
    pixels = load_split()[1].images[list(images.values())].reshape(len(images), -1)
    column = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), pixels.shape[1])
    rows = story.mlctl.home / f"{revision['digest']}.parquet"
    pq.write_table(pa.table({"id": list(images), "image": column}), rows)
    story.mlctl.run(
        "batch", "run", revision["tag"], "--in", rows.name, "--out", "precomputed://scores",
        "--keep", "id",
    ).check_returncode()  # fmt: skip


def _by_key(story: Story, key: str, times: int) -> list[tuple[int, dict[str, Any]]]:
    body = {"parameters": {"entity_key": key}}
    with httpx.Client(timeout=10) as client:
        answers = [client.post(story.url, json=body) for _ in range(times)]
    return [(answer.status_code, answer.json()) for answer in answers]


def _logits(document: dict[str, Any]) -> list[float]:
    return [float(value) for value in document["outputs"][0]["data"]]


def _of_image(story: Story, number: int) -> list[float]:
    image = load_split()[1].images[number]
    answer = httpx.post(story.url, content=request_body(image), timeout=10)
    assert "source" not in answer.json().get("parameters", {})
    return _logits(answer.json())


def _check_slots_keep_their_answers(story: Story) -> None:
    """While both slots serve, each answers from its own precomputed answers only."""
    image = {story.good["digest"]: 0, story.live["digest"]: 1}
    wanted = {digest: _of_image(story, number) for digest, number in image.items()}
    seen = set()
    for status, document in _by_key(story, "both", 60):
        digest = document["model_version"]
        assert (status, document["parameters"]["source"]) == (200, "precomputed")
        assert _logits(document) == pytest.approx(wanted[digest], abs=0.05)
        seen.add(digest)
    assert seen == set(image), "both slots answered"
    alone = _by_key(story, "good only", 60)
    assert {status for status, _ in alone} == {200, 404}
    assert {d["model_version"] for status, d in alone if status == 200} == {story.good["digest"]}


def roll_back_by_hand(story: Story) -> None:
    """A rollback gives all traffic back to the live model."""
    _precompute(story, story.good, {"both": 0, "good only": 2})
    _precompute(story, story.live, {"both": 1})
    unshadowed = (*QUICK, "--shadow-percent", "0", "--min-requests", "1000000", "--skip-checks")
    story.mlctl.json("promote", "shop", story.live["tag"], *unshadowed, "--detach")
    wait_until(story.halved, what="half of the traffic is on it")
    _check_slots_keep_their_answers(story)
    story.mlctl.json("rollback", "shop", "--reason", "changed our mind")
    assert story.last()["outcome"] == "rolled_back"
    after = _by_key(story, "both", 20)
    assert {document["model_version"] for _, document in after} == {story.good["digest"]}
    lines = story.mlctl.run("logs", "shop", "--role", "daemon", "--json").stdout.splitlines()
    assert all(json.loads(line)["role"] == "daemon" for line in lines)


def end_the_deployment_during_a_shadow(story: Story) -> None:
    """`mlctl down` leaves no recorded request behind."""
    endless = (*QUICK, "--min-agreement", "0.999999", "--skip-checks")
    story.mlctl.json("promote", "shop", story.live["tag"], *endless, "--detach")
    wait_until(
        lambda: story.phase() is RolloutPhase.SHADOW and story.samples(),
        what="requests are recorded",
    )
    assert story.mlctl.run("down", "shop").returncode == 0
    assert story.samples() == []
    assert story.last()["outcome"] == "rolled_back"
