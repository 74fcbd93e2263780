from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.journal.records import JournalEvent
from mlctl.rollout.ui.charts import latency_chart, traffic_chart
from mlctl.rollout.ui.view import Page, RolloutPage, RolloutRecord, allowed, deployment_page
from tests.support.played import Played
from tests.support.rollouts import revision


def shown(played: Played) -> tuple[Page, RolloutPage]:
    rollouts = played.journal.rollouts("shop")
    record = RolloutRecord(rollouts[0])
    record.add(played.journal.events("shop", rollout=rollouts[0].id))
    page = deployment_page(played.journal.deployment("shop"), rollouts, record, played.clock.wall())
    assert page.rollout is not None
    return page, page.rollout


def test_page__no_rollout__shows_what_is_live(played: Played) -> None:
    page = deployment_page(played.journal.deployment("shop"), (), None, 0.0)
    (row,) = page.slots
    assert (row.slot, row.weight, page.rollout) == (Slot.BLUE, 100, None)
    assert [link.kind for link in row.chain] == [
        "model", "variant", "bundle", "Bento", "deployment"
    ]  # fmt: skip
    assert row.chain[2].detail == played.journal.deployment("shop").live.digest


def test_page__step__has_the_split_of_the_journal(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    page, rollout = shown(played)
    assert [row.weight for row in page.slots] == [90, 10]
    assert "step 1 of 3" in rollout.state
    assert rollout.allowed == ("pause", "rollback")


def test_page__step_in_progress__shows_what_it_waits_for(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    _, rollout = shown(played)
    step = rollout.step
    assert (step.seconds, step.min_seconds, step.needed) == (2.0, 3.0, 20)
    ready = 1002  # the candidate's, when its deadline begins
    assert rollout.deadline_left == pytest.approx(200 - (played.clock.wall() - ready))
    assert rollout.threshold == pytest.approx(20.0)
    assert rollout.verdict
    assert rollout.answers == ""


def test_page__compared_answers__show_their_agreement(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick()
    record = RolloutRecord(played.journal.rollout(1))
    (tick,) = (each for each in played.journal.events("shop") if each.kind == "tick")
    record.add([replace(tick, body={**tick.body, "compared": [1.0, 50], "shadow": {"psi": 0.013}})])
    rollouts = played.journal.rollouts("shop")
    deployment = played.journal.deployment("shop")
    page = deployment_page(deployment, rollouts, record, played.clock.wall())
    assert page.rollout is not None
    assert page.rollout.answers == "98.00 % of 50 compared requests agree, PSI 0.013"


def test_page__split__shows_both_versions(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    played.journal.split("shop", revision("tiny:cc"), 10, sticky=False)
    page, _ = shown(played)
    assert [(row.part, row.bento, row.weight) for row in page.slots] == [
        ("live", "tiny:bb", 90),
        ("split", "tiny:cc", 10),
    ]


def test_page__gates__show_counts_and_both_kinds_of_evidence(played: Played) -> None:
    played.until(RolloutPhase.DONE, errors=10)
    _, rollout = shown(played)
    gates = {each.gate: each for each in rollout.gates}
    errors = gates["errors vs limit"]
    assert errors.harm is not None
    assert errors.harm.filled == 1.0
    assert "failed (limit 5.00 %)" in errors.counted
    assert gates["errors vs live"].proof is None
    assert "(live slot 0.00 %)" in gates["errors vs live"].counted
    assert rollout.state == "rolled back"
    assert "failed" in rollout.verdict


def test_page__promoted__may_be_taken_back_until_the_next_promotion(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    first = played.controller.rollout.id
    assert shown(played)[1].allowed == ("rollback",)
    played.begin("tiny:cc")
    deployment = played.journal.deployment("shop")
    assert allowed(deployment, played.journal.rollout(first)) == ()


def test_page__return_to_the_previous_version__shows_no_gates(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    assert shown(played)[1].gates
    played.journal.request("shop", OperatorCommand.ROLLBACK, "lunch")
    assert shown(played)[1].gates == ()


def test_page__paused__offers_to_resume_and_its_clocks_stop(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.journal.request("shop", OperatorCommand.PAUSE, "lunch")
    played.tick()
    before = shown(played)[1]
    assert before.allowed == ("resume", "rollback")
    played.clock.advance(50)
    after = shown(played)[1]
    assert (after.step.seconds, after.deadline_left) == (before.step.seconds, None)


def test_record__events_page_by_page__are_folded_as_at_once(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    events: tuple[JournalEvent, ...] = played.journal.events("shop", rollout=1)
    whole, parts = (RolloutRecord(played.journal.rollout(1)) for _ in range(2))
    whole.add(events)
    for event in events:
        parts.add((event,))
    assert whole.weights == parts.weights
    assert whole.points == parts.points
    assert whole.lines == parts.lines
    assert [weight for _, weight in whole.weights] == [0.0, 10.0, 50.0, 100.0]


def test_traffic_chart__weights__hold_until_the_next() -> None:
    chart = traffic_chart([(0.0, 0.0), (30.0, 50.0)], 60.0, Slot.GREEN)
    (edge,) = (each for each in chart.shapes if each.attributes.get("class") == "edge")
    heights = [corner.split(",")[1] for corner in edge.attributes["points"].split()]
    assert heights[0] == heights[1]
    assert heights[2] == heights[3]
    assert float(heights[2]) < float(heights[1])
    assert "50 % on green" in chart.description


@pytest.mark.parametrize(
    ("until", "unit"), [(0.0, "seconds"), (90.0, "seconds"), (600.0, "minutes"), (9e4, "hours")]
)
def test_traffic_chart__any_length__has_round_ticks(until: float, unit: str) -> None:
    texts = [each.text for each in traffic_chart([(0.0, 0.0)], until, Slot.BLUE).shapes]
    assert any(text.startswith(unit) for text in texts)
    assert "0" in texts


def test_latency_chart__limit__is_within_the_chart() -> None:
    chart = latency_chart({Slot.BLUE: [(1.0, 8.0)], Slot.GREEN: []}, 200.0, 60.0)
    assert chart is not None
    (limit,) = (each for each in chart.shapes if each.attributes.get("class") == "limit")
    assert 30.0 < float(limit.attributes["y1"]) < chart.height
    assert latency_chart({Slot.BLUE: [], Slot.GREEN: []}, 200.0, 60.0) is None
