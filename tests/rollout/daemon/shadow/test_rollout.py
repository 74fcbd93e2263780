"""A whole rollout with a shadow: controller, journal, recorders and segments are the real ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.sampling import Sampling
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.rollout.client.rendering import event_line
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold, fold_shadow, next_step
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    Revision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.domain.statistics.verdict import Gate
from mlctl.rollout.domain.traffic.counts import Counts, Totals, Window
from mlctl.rollout.drivers.local.samples import SampleFolder
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import ENDED, TICK, JournalEvent, Rollout
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
    warmup_seconds=1,
    bake_seconds=4,
    deadline_seconds=300,
    shadow_percent=100,
    shadow_seconds=5,
    max_disagreement=0.01,
)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, 3)),),
)
PER_TICK = 40


@dataclass
class Shop:
    """Two servers that record, a proxy that copies, and the controller of one rollout."""

    root: Path
    journal: Journal
    clock: ManualClock
    spec: RolloutSpec = SPEC
    wrong: float = 0.0
    broken: bool = False
    failing: int = 0
    deaf: bool = False
    foreign: bool = False
    models: tuple[str, ...] = ()
    pipeline: bool = False
    requests: int = 0
    recorders: dict[Slot, Recorder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = SampleFolder(self.root)
        self.data_plane = MemoryDataPlane(EDGES)
        live, candidate = (
            replace(revision(tag), models=self.models) for tag in ("tiny:aa", "tiny:bb")
        )
        self.journal.create("shop", Ports(1, 2), DeploymentSettings(drain_seconds=5), live)
        rollout = self.journal.begin("shop", candidate, self.spec)
        recording = None if self.foreign else Recording(self.folder, self.clock, 3600)
        world = memory_world(self.journal, self.data_plane, self.clock, recording=recording)
        self.controller = Controller(self.journal.rollout(rollout), world)
        for slot, each in ((Slot.BLUE, live), (Slot.GREEN, candidate)):
            self.recorders[slot] = self._recorder(slot, each)

    def _recorder(self, slot: Slot, served: Revision) -> Recorder:
        digest = served.digest if self.pipeline else served.digests[0]
        writer = SegmentWriter(self.folder.segments(slot), SIGNATURE, digest)
        return Recorder(writer, SamplingControl(Sampling(), self.folder.control), self.clock)

    def tick(self) -> None:
        """A second of traffic: live answers all or its share, copies go where they should."""
        self.clock.advance(1.0)
        copied = self.data_plane.traffic.mirror > 0 if self.data_plane.traffic else False
        for slot, weight in self.data_plane.weights.items():
            self.data_plane.serve(slot, PER_TICK * weight // 100)
        for number in range(PER_TICK if copied else 0):
            self.requests += 1
            self._answer(Slot.BLUE, np.asarray([0.1, 0.8, 0.1]))
            self._answer(Slot.GREEN, self._candidate_says(number))
        if copied:
            self._count_copies()
        for recorder in () if self.deaf else self.recorders.values():
            recorder.flush()
        self.controller.tick()

    def _candidate_says(self, number: int) -> np.ndarray:
        if self.broken:
            return np.asarray([0.1, np.nan, 0.1])
        return np.asarray([0.8, 0.1, 0.1] if number < self.wrong * PER_TICK else [0.2, 0.7, 0.1])

    def _answer(self, slot: Slot, scores: np.ndarray) -> None:
        request_id = f"r{self.requests}".encode()
        recorder = self.recorders[slot]
        if (sampling := recorder.choose(request_id)) is None:
            return
        seen = RequestRecord("http", request_id, None)
        asked = {"x": np.zeros((1, 2), np.float32)}
        answered = {"y": scores.astype(np.float32)[np.newaxis]}
        recorder.put(seen, sampling, self.clock.wall(), 1, asked, answered)

    def _count_copies(self) -> None:
        before = self.data_plane.shadow.get(Slot.GREEN, Totals(within=(0, 0)))
        copies = Totals(PER_TICK, self.failing, PER_TICK, (PER_TICK, PER_TICK))
        self.data_plane.shadow[Slot.GREEN] = before.plus(copies)

    def until_done(self, limit: int = 200) -> Outcome | None:
        for _ in range(limit):
            if self.controller.progress.phase is RolloutPhase.DONE:
                break
            self.tick()
        return self.journal.rollout(self.controller.rollout.id).outcome

    def ruling(self) -> Gate:
        (ended,) = (event for event in self.journal.events("shop") if event.kind == ENDED)
        return Gate(ended.body["verdict"]["gate"])


@pytest.fixture
def shop(tmp_path: Path, journal: Journal, clock: ManualClock) -> Shop:
    return Shop(tmp_path, journal, clock)


@pytest.mark.parametrize("pipeline", [False, True])
def test_shadow__bento_of_several_models__is_compared(
    tmp_path: Path, journal: Journal, clock: ManualClock, pipeline: bool
) -> None:
    models = ("1" * 64, "2" * 64)
    shop = Shop(tmp_path, journal, clock, broken=True, models=models, pipeline=pipeline)
    assert shop.until_done() is Outcome.ROLLED_BACK
    assert 50 not in shop.data_plane.history


def test_shadow__equal_answers__promotes_and_leaves_nothing(shop: Shop) -> None:
    assert shop.until_done() is Outcome.PROMOTED
    assert shop.data_plane.history == [0, 50, 100]
    compared = [
        event.body["shadow"]["requests"]
        for event in shop.journal.events("shop")
        if event.kind == TICK and event.body["shadow"]
    ]
    assert sum(compared) >= 440
    assert not shop.folder.control.exists()
    assert not list(shop.root.glob("samples/*/*.parquet"))


def test_shadow__different_answers__rolls_back_before_any_user(shop: Shop) -> None:
    shop.wrong = 0.1
    assert shop.until_done() is Outcome.ROLLED_BACK
    assert shop.ruling() is Gate.DISAGREEMENT
    assert shop.data_plane.history == [0]
    (ended,) = (event for event in shop.journal.events("shop") if event.kind == ENDED)
    assert Path(ended.body["disagreements"]).exists()
    assert not shop.folder.control.exists()


def test_shadow__nan__rolls_back_at_once(shop: Shop) -> None:
    shop.broken = True
    assert shop.until_done() is Outcome.ROLLED_BACK
    assert shop.ruling() is Gate.NON_FINITE
    assert shop.data_plane.history == [0]


def test_shadow__failing_copies__roll_back(shop: Shop) -> None:
    shop.failing = PER_TICK // 2
    assert shop.until_done() is Outcome.ROLLED_BACK
    assert shop.ruling() in (Gate.ERRORS_VS_LIMIT, Gate.ERRORS_VS_LIVE)
    assert shop.data_plane.history == [0]


def test_shadow__servers_record_nothing__continues_and_reports_it(
    tmp_path: Path, journal: Journal, clock: ManualClock
) -> None:
    """What users see is judged all the same."""
    spec = replace(SPEC, shadow_wait_seconds=120)
    shop = Shop(tmp_path, journal, clock, spec, deaf=True)
    assert shop.until_done(100) is Outcome.PROMOTED
    told = [event_line(event) or "" for event in journal.events("shop") if event.kind == "phase"]
    assert any("the servers recorded none of" in line for line in told), told


def test_shadow__required_agreement_without_records__is_inconclusive(
    tmp_path: Path, journal: Journal, clock: ManualClock
) -> None:
    shop = Shop(tmp_path, journal, clock, deaf=True)
    assert shop.until_done(400) is Outcome.INCONCLUSIVE
    assert shop.data_plane.history == [0]


def test_shadow__servers_cannot_record__is_skipped(
    tmp_path: Path, journal: Journal, clock: ManualClock
) -> None:
    spec = replace(SPEC, shadow_wait_seconds=120)
    shop = Shop(tmp_path, journal, clock, spec, foreign=True)
    assert shop.until_done(60) is Outcome.PROMOTED
    told = [event_line(event) or "" for event in journal.events("shop")]
    assert any("without a shadow: the servers cannot record" in line for line in told), told


def refolded(rollout: Rollout, events: Iterable[JournalEvent]) -> GateEvidence:
    """What the recorded ticks say, one after the other."""
    evidence = GateEvidence()
    for event in events:
        if event.kind == TICK and (shadow := event.body["shadow"]):
            evidence = fold_shadow(evidence, ShadowWindow(**shadow), rollout.spec)
        if event.kind == TICK and event.body["judged"]:
            window = event.body["window"]
            counts = Counts(**window["candidate"]), Counts(**window["live"])
            whole = Window(*counts, window["representative"], window["seconds"])
            evidence = fold(evidence, whole, rollout.spec)
        if event.kind == "phase" and event.body["phase"] in (RolloutPhase.SHIFT, RolloutPhase.BAKE):
            evidence = next_step(evidence)
    return evidence


def test_evidence__refolded_from_the_journal__is_the_same(shop: Shop) -> None:
    shop.wrong = 0.01
    for _ in range(25):
        shop.tick()
    rollout = shop.journal.rollout(shop.controller.rollout.id)
    again = rollout.progress.evidence
    assert again == shop.controller.progress.evidence
    assert again == refolded(rollout, shop.journal.events("shop", rollout=rollout.id))
    assert again.shadow.total.requests > 0
