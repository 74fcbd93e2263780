"""The comparison of two revisions, with the server's own recorder at the other end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from mlctl.bundle.sampling import Sampling
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.rollout.daemon.recording import MAX_ROWS_PER_SECOND, Recording, needed_share
from mlctl.rollout.daemon.shadow.comparison import ShadowComparison
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.shadow.join import AnswerSide
from mlctl.rollout.domain.spec import DeploymentSettings, RolloutSpec, Slot
from mlctl.rollout.drivers.local.samples import SAMPLE_DIR, SampleFolder, sample_folder
from mlctl.services.online.observability.calls import RequestRecord
from mlctl.services.online.observability.sampling import Recorder, SamplingControl
from mlctl.services.online.observability.segments import SegmentWriter
from tests.support.clock import ManualClock

DIGESTS = {AnswerSide.LIVE: "b" * 64, AnswerSide.CANDIDATE: "c" * 64}
SPEC = RolloutSpec(shadow_percent=100, max_disagreement=0.01)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 4)),),
    outputs=(
        TensorSpec(name="scores", dtype=Datatype.FP32, shape=(-1, 3)),
        TensorSpec(name="label", dtype=Datatype.BYTES, shape=(-1,)),
    ),
)


@dataclass
class Shop:
    """Both slots' recorders, and who compares them."""

    root: Path
    clock: ManualClock
    recorders: dict[Slot, Recorder] = field(default_factory=dict)
    requests: int = 0

    def __post_init__(self) -> None:
        self.folder = SampleFolder(self.root)
        slots = {AnswerSide.LIVE: Slot.BLUE, AnswerSide.CANDIDATE: Slot.GREEN}
        sides = {slots[side]: (side, frozenset([each])) for side, each in DIGESTS.items()}
        self.recording = Recording(self.folder, self.clock, 3600)
        self.watch = ShadowComparison(self.recording, sides, SPEC, 7, self.clock)
        for slot, side in ((Slot.BLUE, AnswerSide.LIVE), (Slot.GREEN, AnswerSide.CANDIDATE)):
            writer = SegmentWriter(self.folder.segments(slot), SIGNATURE, DIGESTS[side])
            control = SamplingControl(Sampling(), self.folder.control)
            self.recorders[slot] = Recorder(writer, control, self.clock)

    def serve(self, slot: Slot, name: str, scores: list[list[float]]) -> None:
        """One request that the server answers so, recorded if its id is among the chosen."""
        request_id, rows = name.encode(), len(scores)
        if (sampling := self.recorders[slot].choose(request_id)) is None:
            return
        asked = {"x": np.full((rows, 4), self.requests, np.float32)}
        answered = {
            "scores": np.asarray(scores, np.float32),
            "label": np.asarray([b"abc"[np.argmax(row)] for row in scores], dtype=object),
        }
        answered["label"] = np.asarray([bytes([code]) for code in answered["label"]], dtype=object)
        seen = RequestRecord("http", request_id, None)
        self.recorders[slot].put(seen, sampling, self.clock.wall(), rows, asked, answered)

    def begin(self) -> None:
        """Looks until the servers record all: told to begin, told how much, and have heard it."""
        for _ in range(3):
            self.passed()

    def observe(self, both: int = 0, wrong: int = 0, rows: int = 2) -> ShadowWindow:
        """A second with `both` requests to both slots, in `wrong` of them one row differs."""
        good = [[0.1, 0.8, 0.1]] * rows
        for number in range(both):
            self.requests += 1
            self.serve(Slot.BLUE, f"r{self.requests}", good)
            bad = [[0.8, 0.1, 0.1], *good[1:]]
            self.serve(Slot.GREEN, f"r{self.requests}", bad if number < wrong else good)
        return self.passed(both)

    def passed(self, requests: int = 5) -> ShadowWindow:
        """Flush the recorders and take a tick, one second later."""
        self.clock.advance(1.1)
        for recorder in self.recorders.values():
            recorder.flush()
        return self.watch.observe(requests)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, ManualClock())


def test_watch__recorded_segments__are_compared(shop: Shop) -> None:
    shop.begin()
    assert shop.watch.kept() is None
    found = [shop.observe(20, wrong=4) for _ in range(3)]
    assert sum(window.requests for window in found) == 60
    assert sum(window.rows for window in found) == 120
    assert sum(window.differed for window in found) == 12
    assert sum(window.disagreed for window in found) == pytest.approx(6.0)
    assert not any(window.lost or window.non_finite for window in found)
    kept = pq.read_table(shop.watch.kept())
    assert len(kept) == 12
    first = kept.to_pylist()[0]
    assert (first["live.label"], first["candidate.label"]) == (b"b", b"a")
    assert first["in.x"] == [1.0] * 4


def test_drift__few_rows__is_reported_only_with_enough(shop: Shop) -> None:
    shop.begin()
    windows = [shop.observe(20, wrong=20, rows=1) for _ in range(20)]
    assert windows[0].psi is None
    last = windows[-1]
    assert last.psi is not None
    assert last.psi > SPEC.max_psi
    assert last.psi_rows == 400


def test_watch__nan_of_the_candidate__is_counted(shop: Shop) -> None:
    shop.begin()
    shop.serve(Slot.BLUE, "r", [[0.1, 0.8, 0.1]])
    shop.serve(Slot.GREEN, "r", [[0.1, float("nan"), 0.1]])
    assert shop.passed().non_finite == 1


def test_watch__answers_of_another_revision__are_no_pairs(shop: Shop) -> None:
    stranger = SegmentWriter(shop.folder.segments(Slot.GREEN), SIGNATURE, "d" * 64)
    control = SamplingControl(Sampling(), shop.folder.control)
    shop.recorders[Slot.GREEN] = Recorder(stranger, control, shop.clock)
    shop.begin()
    assert shop.observe(20).requests == 0


def test_recording__stopped_twice__leaves_nothing(shop: Shop) -> None:
    shop.begin()
    shop.observe(5)
    shop.recording.stop()
    shop.recording.stop()
    assert not shop.folder.control.exists()
    assert not list(shop.root.glob("samples/*/*.parquet"))
    assert shop.observe(5).requests == 0


def test_recording__daemon_is_dead__ends_by_itself(shop: Shop) -> None:
    shop.begin()
    shop.clock.advance(61)
    shop.recorders[Slot.BLUE].flush()
    assert shop.recorders[Slot.BLUE].choose(b"r") is None


def test_recording__daemon_ticks__stays_on(shop: Shop) -> None:
    for _ in range(200):
        shop.passed()
    assert shop.observe(5).requests == 5


def test_recording__tick_without_counts__keeps_the_share(shop: Shop) -> None:
    """The proxy was restarted: how much traffic there is, is not known."""
    for _ in range(3):
        shop.passed(100_000)
    shop.passed(0)
    told = Sampling.from_json(shop.folder.control.read_text())
    assert told.share == pytest.approx(0.01)


def test_watch__segments_of_an_earlier_rollout__are_removed(shop: Shop) -> None:
    left = shop.folder.segments(Slot.BLUE) / "0.parquet"
    left.write_bytes(b"")
    shop.passed()
    assert not left.exists()


def test_watch__row_without_partner__is_counted_as_lost(shop: Shop) -> None:
    shop.begin()
    shop.serve(Slot.GREEN, "alone", [[0.1, 0.8, 0.1]])
    assert sum(shop.passed().lost for _ in range(20)) == 1


def test_needed_share__more_traffic__bounds_rows_per_second() -> None:
    assert needed_share(5, 0, 0, 0) == 1.0
    assert needed_share(1000, 0, 0, 0) == pytest.approx(0.02)
    assert needed_share(1000, 100, 1000, 100) == pytest.approx(MAX_ROWS_PER_SECOND / 1000)
    assert needed_share(1000, 1000, 1000, 100) == pytest.approx(MAX_ROWS_PER_SECOND / 10_000)
    assert needed_share(100, 100, 100 << 20, 100) == pytest.approx(0.08)
    assert needed_share(1e6, 100, 1000, 100) == 0.01


def test_sample_folder__servers_record_elsewhere__is_none(tmp_path: Path) -> None:
    settings = DeploymentSettings()
    assert sample_folder(tmp_path, settings) == SampleFolder(tmp_path)
    assert sample_folder(tmp_path, replace(settings, server={SAMPLE_DIR: "/elsewhere"})) is None
