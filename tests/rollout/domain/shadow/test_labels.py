"""Answers beside the labels that arrive later, and the gate on them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mlctl.bundle.output_kinds import OutputKind
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold_labels, next_step
from mlctl.rollout.domain.machine.state_machine import (
    RolloutPhase,
    RolloutProgress,
    TickObservation,
)
from mlctl.rollout.domain.shadow import labels
from mlctl.rollout.domain.shadow.labels import LabelledTrials, LabelValue, deviation
from mlctl.rollout.domain.spec import Outcome, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate, HoldReason

SPEC = RolloutSpec(min_accuracy=0.9, deadline_seconds=1000)
SCORES = np.asarray([0.1, 0.7, 0.2], np.float32)
TEXT = np.asarray("cat", dtype=object)


@pytest.mark.parametrize(
    ("kind", "answer", "label", "error"),
    [
        (OutputKind.CLASS_SCORES, SCORES, 1, 0.0),
        (OutputKind.CLASS_SCORES, SCORES, "1", 0.0),
        (OutputKind.CLASS_SCORES, SCORES, 2.0, math.inf),
        (OutputKind.CLASS_SCORES, np.asarray([0.1, np.nan]), 1, math.inf),
        (OutputKind.LABELS, TEXT, "cat", 0.0),
        (OutputKind.LABELS, TEXT, "dog", math.inf),
        (OutputKind.LABELS, np.asarray(3), "3", 0.0),
        (OutputKind.LABELS, np.asarray(3), 4, math.inf),
        (OutputKind.LABELS, np.asarray(True), "true", 0.0),
        (OutputKind.LABELS, np.asarray(False), True, math.inf),
        (OutputKind.LABELS, np.asarray([1, 2]), [1.0, 2.0], 0.0),
        (OutputKind.CLASS_SEQUENCES, np.stack([SCORES, SCORES[::-1]])[None], [1, 1], 0.0),
        (OutputKind.CLASS_SEQUENCES, np.stack([SCORES, SCORES[[1, 0, 2]]]), [1, 1], math.inf),
        (OutputKind.NUMBERS, np.asarray(2.0), "2.5", 0.5),
        (OutputKind.NUMBERS, np.asarray([[1.0, 4.0]]), [1.0, 2.0], 2.0),
        (OutputKind.NUMBERS, np.asarray(np.nan), 1.0, math.inf),
    ],
)
def test_deviation__label_of_the_outputs_kind__is_the_distance(
    kind: OutputKind, answer: np.ndarray, label: LabelValue, error: float
) -> None:
    assert deviation(kind, answer, label).error == error


@pytest.mark.parametrize(
    ("kind", "answer", "label", "said"),
    [
        (OutputKind.CLASS_SCORES, SCORES, 3, "0 to 2"),
        (OutputKind.CLASS_SCORES, SCORES, 0.5, "0 to 2"),
        (OutputKind.CLASS_SCORES, SCORES, "cat", "'cat' is not a number"),
        (OutputKind.LABELS, np.asarray(3), "cat", "'cat' is not a number"),
        (OutputKind.LABELS, np.asarray(3), [1.0, 2.0], "2 values, the answer has 1"),
        (OutputKind.NUMBERS, np.asarray([1.0, 2.0]), 1.0, "1 numbers, the answer has 2"),
        (OutputKind.NUMBERS, np.asarray(1.0), "nan", "not a finite number"),
    ],
)
def test_deviation__label_of_another_kind__is_an_error_in_words(
    kind: OutputKind, answer: np.ndarray, label: LabelValue, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        deviation(kind, answer, label)


def observed(wrong: float, requests: int = 20, blocks: int = 20) -> TickObservation:
    """Labels of `blocks` blocks of time, which arrive in one tick."""
    found = labels.trials([(wrong * requests, requests)] * blocks, SPEC)
    live = labels.trials([(0.0, requests)] * blocks, SPEC)
    return TickObservation(None, labelled=LabelledTrials(found, live))


def baking(observation: TickObservation, spec: RolloutSpec = SPEC) -> RolloutProgress:
    progress = RolloutProgress(
        phase=RolloutPhase.BAKE, step=4, step_requests=100, step_ticks=10, exposed=0.0
    )
    # The requests' own gates are proved.
    proved = replace(spec, max_error_rate=0.98)
    return machine.absorb(progress, observation, proved, 900.0)


def test_accuracy_gate__labels_show_harm__rolls_back_with_numbers() -> None:
    verdict = gates.harm(baking(observed(0.5)).evidence, SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.ACCURACY_VS_LIMIT)
    assert verdict.why == "50.00 % of 400 requests with a label were answered wrong (limit 10 %)"
    assert (verdict.value, verdict.limit, verdict.n) == (0.5, 0.1, 400)


def test_accuracy_gate__one_burst_of_wrong_answers__is_no_lasting_harm() -> None:
    blocks = [(20.0, 20), *[(0.0, 20)] * 40]
    found = LabelledTrials(labels.trials(blocks, SPEC))
    evidence = fold_labels(GateEvidence(), found)
    assert gates.harm(evidence, SPEC) is None


def test_accuracy_gate__too_few_labels__holds_and_is_inconclusive_at_the_deadline() -> None:
    for observation in (TickObservation(None), observed(0.0, requests=1, blocks=3)):
        evidence = baking(observation).evidence
        assert gates.harm(evidence, SPEC) is None
        held = gates.unproved(evidence, replace(SPEC, max_error_rate=0.98))
        assert held is not None
        assert held.gate is HoldReason.PROOF
    late = machine.judge(baking(TickObservation(None)), TickObservation(None), SPEC, 1001.0)
    assert (late.action, late.gate) == (Action.INCONCLUSIVE, HoldReason.DEADLINE)
    ended = machine.apply_verdict(baking(TickObservation(None)), late, SPEC, 1001.0)
    assert ended.planned is Outcome.INCONCLUSIVE


def test_accuracy_gate__labels_show_that_it_is_kept__is_proved() -> None:
    evidence = baking(observed(0.0)).evidence
    threshold = math.log(1.0 / SPEC.alpha)
    assert evidence.proof_values(SPEC)[Gate.ACCURACY_VS_LIMIT] >= threshold
    assert gates.doubtful(evidence, SPEC) is None
    held = gates.unproved(evidence, SPEC)
    assert held is not None
    assert "failed" in held.why  # only the error rate is still to be proved


def test_accuracy_gate__share_beyond_the_limit_of_few_labels__is_doubted() -> None:
    doubt = gates.doubtful(baking(observed(0.5, requests=2, blocks=1)).evidence, SPEC)
    assert doubt is not None
    assert (doubt.action, doubt.gate) == (Action.HOLD, Gate.ACCURACY_VS_LIMIT)


def test_accuracy_gate__corrected_labels__replace_the_ones_before() -> None:
    wrong = baking(observed(0.5))
    right = machine.absorb(wrong, observed(0.0), SPEC, 901.0)
    assert gates.harm(right.evidence, SPEC) is None
    assert right.evidence.of(Gate.ACCURACY_VS_LIMIT).ours.hits == 0


def test_accuracy_gate__ticks_and_steps_without_labels__keep_the_labelled_answers() -> None:
    progress = baking(observed(0.5))
    before = progress.evidence.of(Gate.ACCURACY_VS_LIMIT)
    assert next_step(progress.evidence).of(Gate.ACCURACY_VS_LIMIT).ours == before.ours


def test_require_recording__no_recorder__rejects_a_limit_on_accuracy() -> None:
    labels.require_recording(RolloutSpec(), can_record=False)
    labels.require_recording(SPEC, can_record=True)
    with pytest.raises(MlctlError) as caught:
        labels.require_recording(SPEC, can_record=False)
    assert caught.value.code is ErrorCode.INVALID_INPUT
