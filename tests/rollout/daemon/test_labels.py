"""A whole rollout that is judged by labels; controller, recorders, segments and store are real."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.sampling import Sampling
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.daemon.reporting.series import Series
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.shadow.labels import RIGHT, WRONG
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec, Slot
from mlctl.rollout.domain.statistics.verdict import Gate
from mlctl.rollout.drivers.local.samples import SampleFolder
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.predictions import PredictionStore
from mlctl.rollout.journal.records import TICK
from mlctl.services.online.observability.calls import RequestRecord
from mlctl.services.online.observability.sampling import Recorder, SamplingControl
from mlctl.services.online.observability.segments import SegmentWriter
from tests.support.clock import ManualClock
from tests.support.memory import MemoryDataPlane, memory_world
from tests.support.rollouts import revision

EDGES = (100.0, 200.0)
SPEC = RolloutSpec(
    steps=(50, 100),
    step_seconds=3,
    min_requests=20,
    max_error_rate=0.05,
    warmup_seconds=0,
    burst_seconds=2,
    bake_seconds=4,
    deadline_seconds=120,
    min_accuracy=0.9,
)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2)),),
    outputs=(TensorSpec(name="probs", dtype=Datatype.FP32, shape=(-1, 2)),),
)
PER_TICK = 40


@dataclass
class Shop:
    """Two servers that record their answers, and a rollout without copies."""

    root: Path
    journal: Journal
    clock: ManualClock
    spec: RolloutSpec = SPEC
    settings: DeploymentSettings = field(default_factory=DeploymentSettings)
    requests: int = 0
    recorders: dict[Slot, Recorder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data_plane = MemoryDataPlane(EDGES)
        self.folder = SampleFolder(self.root)
        self.live, self.candidate = revision("tiny:aa"), revision("tiny:bb")
        self.journal.create("shop", Ports(1, 2), self.settings, self.live)
        self.id = self.journal.begin("shop", self.candidate, self.spec)
        self.recording = Recording(self.folder, self.clock, 3600.0)
        world = memory_world(self.journal, self.data_plane, self.clock, recording=self.recording)
        self.controller = Controller(self.journal.rollout(self.id), world)
        for slot, served in ((Slot.BLUE, self.live), (Slot.GREEN, self.candidate)):
            writer = SegmentWriter(self.folder.segments(slot), SIGNATURE, served.digest)
            control = SamplingControl(Sampling(), self.folder.control)
            self.recorders[slot] = Recorder(writer, control, self.clock)

    def tick(self) -> None:
        """A second of traffic, which each slot records if the daemon commands it."""
        self.clock.advance(1.0)
        for slot, weight in self.data_plane.weights.items():
            count = PER_TICK * weight // 100
            self.data_plane.serve(slot, count)
            for _ in range(count):
                self._answer(slot)
        for recorder in self.recorders.values():
            recorder.flush()
        self.controller.tick()

    def _answer(self, slot: Slot) -> None:
        self.requests += 1
        name = f"r{self.requests}".encode()
        if (sampling := self.recorders[slot].choose(name)) is None:
            return
        seen = RequestRecord("http", name, None)
        inputs = {"x": np.zeros((1, 2), np.float32)}
        answered = {"probs": np.asarray([[0.3, 0.7]], np.float32)}
        self.recorders[slot].put(seen, sampling, self.clock.wall(), 1, inputs, answered)

    def label(self, wrong_of_candidate: float) -> int:
        """Label every recorded prediction, as another process does; return how many."""
        with PredictionStore(self.folder.predictions) as store:
            found = store.find([f"r{number}" for number in range(self.requests + 1)])
            rows = [each for rows in found.values() for each in rows]
            ours = [each for each in rows if each.digest == self.candidate.digest]
            bad = {
                each.request_id for n, each in enumerate(ours) if n % 10 < 10 * wrong_of_candidate
            }
            store.label([(each, WRONG if each.request_id in bad else RIGHT) for each in rows])
        return len(rows)

    def until(self, phase: RolloutPhase, limit: int = 300) -> None:
        for _ in range(limit):
            if self.controller.progress.phase is phase:
                return
            self.tick()
        raise AssertionError(self.controller.progress)

    def gate(self) -> Gate:
        ruling = self.journal.rollout(self.id).progress.ruling
        assert ruling is not None
        return Gate(ruling.gate)


@pytest.fixture
def shop(tmp_path: Path, journal: Journal, clock: ManualClock) -> Shop:
    return Shop(tmp_path, journal, clock)


def test_labels__show_that_the_candidate_is_worse__rolls_back_before_all_traffic(
    shop: Shop,
) -> None:
    for _ in range(40):
        shop.tick()
    assert shop.controller.progress.phase is RolloutPhase.SHIFT, "no label: it holds"
    assert shop.label(wrong_of_candidate=0.5) > 300
    shop.until(RolloutPhase.DONE, limit=5)
    assert shop.journal.rollout(shop.id).outcome is Outcome.ROLLED_BACK
    assert shop.gate() is Gate.ACCURACY_VS_LIMIT
    assert 100 not in shop.data_plane.history
    assert not shop.folder.control.exists()
    assert not list(shop.root.glob("samples/*/*.parquet"))


def test_labels__show_that_the_candidate_is_good__promotes(shop: Shop) -> None:
    for _ in range(20):
        shop.tick()
    shop.label(wrong_of_candidate=0.0)
    shop.until(RolloutPhase.DONE)
    assert shop.journal.rollout(shop.id).outcome is Outcome.PROMOTED
    ticks = [event for event in shop.journal.events("shop") if event.kind == TICK]
    assert ticks[-1].body["labelled"]["candidate"][1] > 100
    assert ticks[-1].body["proofs"]["accuracy_vs_limit"] >= 20
    series = Series(shop.journal.rollout(shop.id))
    points = [point for event in ticks if (point := series.add(event))]
    assert points[-1].values["candidate/accuracy"] == 1.0
    assert points[-1].values["live/accuracy"] == 1.0


def test_labels__never_come__is_inconclusive_at_the_deadline(shop: Shop) -> None:
    shop.until(RolloutPhase.DONE)
    assert shop.journal.rollout(shop.id).outcome is Outcome.INCONCLUSIVE


def test_labels__inputs_of_the_requests__are_not_recorded(shop: Shop) -> None:
    for _ in range(5):
        shop.tick()
    assert Sampling.from_json(shop.folder.control.read_text()).inputs is False


def test_labels__store_is_unusable__the_other_gates_go_on(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.folder.predictions.write_bytes(b"not a database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        PredictionStore(shop.folder.predictions)
    shop.until(RolloutPhase.DONE)
    assert shop.journal.rollout(shop.id).outcome is Outcome.INCONCLUSIVE
    assert caplog.text.count("predictions are not kept") == 1


def test_recording__during_a_rollout_without_the_gate__goes_on_at_its_share(
    tmp_path: Path, journal: Journal, clock: ManualClock
) -> None:
    spec, settings = replace(SPEC, min_accuracy=None), DeploymentSettings(record_share=0.5)
    shop = Shop(tmp_path, journal, clock, spec, settings)
    for _ in range(6):
        shop.tick()
    assert Sampling.from_json(shop.folder.control.read_text()).share == 0.5
    assert 0 < shop.label(wrong_of_candidate=0.5) < shop.requests * 0.7
    shop.until(RolloutPhase.DONE)
    assert shop.journal.rollout(shop.id).outcome is Outcome.PROMOTED, "the labels do not judge it"


def test_recording__while_no_rollout_runs__keeps_a_share_of_the_predictions(
    tmp_path: Path, journal: Journal, clock: ManualClock
) -> None:
    shop = Shop(tmp_path, journal, clock)
    shop.recording.keep = True
    for _ in range(10):
        clock.advance(5.0)
        for _ in range(100):
            shop._answer(Slot.BLUE)
        for recorder in shop.recorders.values():
            recorder.flush()
        shop.recording.observe(100, inputs=False, max_share=0.25)
    assert Sampling.from_json(shop.folder.control.read_text()).share == 0.25
    assert 100 < shop.label(wrong_of_candidate=0.0) < 400
    assert not list(shop.root.glob("samples/*/*.parquet"))
