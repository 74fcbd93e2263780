"""Estimates from the pace of a model, and what a limit of time leaves out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.clock import SystemClock
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.events import Stage, StepEvent, StepStatus
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import OptimizeResult, optimize
from mlctl.optimize.recipes.base import Details, Precision, Recipe, Target, Workbench
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.choice import VariantVerdict
from mlctl.optimize.variants.goals import Prefer
from mlctl.optimize.variants.time_limit import Pace, Seconds, by_promise, measure_pace
from tests.support.clock import ManualClock
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows

RECIPES = {recipe.name: recipe for target in Target for recipe in select(None, target)}


@pytest.mark.parametrize(
    ("target", "prefer", "first"),
    [
        (Target.CPU, Prefer.LATENCY, "fp32 int8-static int8-dynamic int4 fp16"),
        (Target.CPU, Prefer.THROUGHPUT, "fp32 int8-static int8-dynamic int4 fp16"),
        (Target.CPU, Prefer.SIZE, "fp32 int4 int8-static int8-dynamic fp16"),
        (Target.TENSORRT, Prefer.LATENCY, "fp32 fp16 int8-trt int4-trt"),
    ],
)
def test_by_promise__target_and_preference__decide_what_is_tried_first(
    target: Target, prefer: Prefer, first: str
) -> None:
    found = by_promise(select(None, target), target, prefer)
    assert [recipe.name for recipe in found] == first.split()


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 0.0, "about 1 s"),
        (10.0, 20.0, "7 s to 30 s"),
        (100.0, 400.0, "70 s to 10 min"),
        (9000.0, 90_000.0, "1.8 h to 37.5 h"),
    ],
)
def test_seconds__words__are_a_range_with_room(low: float, high: float, words: str) -> None:
    assert Seconds(low, high).words == words


def test_pace__each_recipe__counts_its_passes() -> None:
    pace = Pace(call=0.001, row=0.01, load=0.1, layers=16)
    assert pace.passes(80, 8) == pytest.approx(0.81)
    assert pace.build(RECIPES["fp32"], 80).low == 0.0
    half = pace.build(RECIPES["fp16"], 80)
    assert half.low == half.high == pytest.approx(0.3 + 0.004 + 0.32)
    each = 0.81 + 0.3
    found = pace.build(RECIPES["int8-static"], 80)
    assert found.low == pytest.approx(2 * each)
    # Four forms, a search by halves for one of 16 numbers, and each layer alone on 8 rows.
    assert found.high == pytest.approx((2 + 4 + 4) * each + 16 * (0.081 + 0.3))
    before_export = Pace(0.001, 0.01).build(RECIPES["int8-static"], 80)
    assert before_export.high == pytest.approx(6 * 0.81)
    judged = pace.judge(100, 32)
    assert judged.low == pytest.approx(0.1 + 5 * 0.001 + 160 * 0.01)
    assert judged.high - judged.low == pytest.approx(100 * 0.011)


@pytest.mark.parametrize(
    ("run", "low", "high"),
    [
        (1e-5, 3e-5 + 300 * 2e-5, 3e-5 + 300 * 2e-5),
        (0.01, 0.03 + 15 * 0.02, 0.03 + 2.0),
        (0.1, 0.1 + 15 * 0.1, 0.1 + 2.0),
        (10.0, 10 + 30, 10 + 30),
    ],
)
def test_pace__latency__is_bounded_as_the_measurement_is(
    run: float, low: float, high: float
) -> None:
    found = Pace(0.0, run).latency([1])
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize(("rows", "call"), [(20, 0.5), (2, 0.5), (1, 0.0)])
def test_measure_pace__runs_of_one_row_and_of_a_few__tell_call_from_row(
    rows: int, call: float
) -> None:
    clock = ManualClock()

    def run(inputs: Tensors) -> None:
        clock.advance(0.5 + 0.25 * len(inputs["x"]))

    found = measure_pace(run, Rows({"x": np.zeros((rows, 1))}, None), clock)
    assert (found.call, found.row) == pytest.approx((call, 0.75 - call))


class JumpingClock(SystemClock):
    """The machine's clock, which a test moves forward."""

    def __init__(self) -> None:
        self._jumped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._jumped

    def advance(self, seconds: float) -> None:
        self._jumped += seconds


@dataclass
class Searching:
    """A recipe that measures `forms` graphs, each of which takes `seconds`."""

    clock: JumpingClock
    seconds: float
    forms: int = 4
    name: str = "searching"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 1
    tuned: bool = True
    measured: list[int] = field(default_factory=list)

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        shutil.copyfile(source, directory / "model.onnx")
        for form in range(self.forms):

            def part(folder: Path, form: int = form) -> None:
                (folder / "part").write_bytes(b"")
                self.measured.append(form)

            bench.store({"kind": "part", "form": form}, part)
            bench.quality(directory)
            self.clock.advance(self.seconds)
        return Details({"forms": str(self.forms)})


class Events:
    def __init__(self) -> None:
        self.skipped: list[tuple[str | None, str]] = []

    def event(self, event: StepEvent) -> None:
        if (event.stage, event.status) == (Stage.VARIANT, StepStatus.SKIPPED):
            self.skipped.append((event.recipe, event.detail))


@dataclass
class World:
    """The model `tiny`, its rows, and a clock that `Searching` moves."""

    catalog: MemoryCatalog
    data: Path
    clock: JumpingClock = field(default_factory=JumpingClock)
    events: Events = field(default_factory=Events)

    def optimize(self, recipes: list[Recipe], max_seconds: float | None) -> OptimizeResult:
        return optimize(
            *("tiny", self.data),
            catalog=self.catalog,
            options=OptimizeOptions(max_seconds=max_seconds),
            recipes=recipes,
            progress=self.events,
            clock=self.clock,
        )


@pytest.fixture
def world(onnx_catalog: MemoryCatalog, tmp_path: Path) -> World:
    rows = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    return World(onnx_catalog, save_rows(tmp_path / "rows.npz", {"x": rows}))


def verdicts(result: OptimizeResult) -> dict[str, VariantVerdict]:
    return {item.variant.recipe: item.verdict for item in result.judged}


REASON = "the time limit of 1000 s leaves no time for it"


def test_optimize__a_search_beyond_the_limit__is_ended_and_what_follows_is_skipped(
    world: World,
) -> None:
    search = Searching(world.clock, seconds=600.0)
    found = world.optimize([RECIPES["fp16"], search, RECIPES["fp32"]], 1000.0)
    assert verdicts(found) == {
        "fp16": VariantVerdict.SKIPPED,
        "searching": VariantVerdict.SKIPPED,
        "fp32": VariantVerdict.CHOSEN,
    }
    assert search.measured == [0, 1]
    assert world.events.skipped == [("searching", REASON), ("fp16", REASON)]
    assert found.judged[0].reason == f"skipped: {REASON}"
    assert "Not tried for lack of time: fp16, searching." in found.report


def test_optimize__after_a_limited_run__continues_and_gives_what_an_unlimited_one_gives(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    search = Searching(world.clock, seconds=600.0)
    recipes = [RECIPES["fp32"], RECIPES["fp16"], search]
    world.optimize(recipes, 1000.0)
    after = world.optimize(recipes, None)
    assert search.measured == [0, 1, 2, 3]
    again = world.optimize(recipes, 1e-9)  # all is cached, and takes no time
    assert verdicts(again) == verdicts(after)
    assert VariantVerdict.SKIPPED not in verdicts(after).values()

    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "other"))
    assert world.optimize(recipes, None).digest == after.digest == again.digest
