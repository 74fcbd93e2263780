"""Labels that arrive after the answers, joined to what a deployment predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from mlctl.bundle.output_kinds import OutputKind
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.shadow.labels import Deviation, Label, deviation
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.drivers.local.samples import SampleFolder
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.predictions import Accuracy, Prediction, PredictionStore
from mlctl.rollout.journal.records import Deployment, Rollout


@dataclass(frozen=True, slots=True)
class RevisionAccuracy:
    """How a revision did on all of its labelled requests so far.

    `accuracy` is the share that was answered right. `mean_error` is the mean distance of numbers
    from their labels; None for classes.
    """

    bento: str
    digest: str
    requests: int
    accuracy: float
    mean_error: float | None


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """What became of some labels.

    Of `labels` rows, `joined` found a prediction and `unknown` none: the request was not recorded,
    is too old, or has an id that another request had too. `repeated` were replaced by a later line.
    """

    labels: int
    joined: int
    unknown: int
    repeated: int
    revisions: tuple[RevisionAccuracy, ...]


def add_feedback(name: str, labels: Iterable[Label]) -> FeedbackReport:
    """Record the labels of a deployment's requests, all or none; the last one of a row wins.

    The daemon judges a rollout with `min_accuracy` by them. DEPLOYMENT_NOT_FOUND; NOT_FOUND if no
    prediction was ever recorded; INVALID_INPUT for a label of another kind than the answers.
    """
    with Journal(paths.journal()) as journal:
        deployment, rollout = journal.deployment(name), journal.active(name)
        path = SampleFolder(paths.directory(name)).predictions
        if not path.exists():
            raise _nothing_recorded(name)
        with PredictionStore(path) as store:
            given, newest = 0, dict[tuple[str, int | None], Label]()
            for label in labels:
                given += 1
                newest[label.request_id, label.row] = label
            found, joined = _joined(store, newest)
            store.label(found)
            spec = rollout.spec if rollout else RolloutSpec()
            names = _bentos(deployment, journal.rollouts(name))
            revisions = tuple(_named(each, names) for each in store.accuracies(spec))
        repeated = given - len(newest)
        report = FeedbackReport(given, joined, given - repeated - joined, repeated, revisions)
        journal.add_feedback(name, asdict(report))
        return report


def _joined(
    store: PredictionStore, labels: Mapping[tuple[str, int | None], Label]
) -> tuple[list[tuple[Prediction, Deviation]], int]:
    """Return each labelled prediction, and how many of the labels have one."""
    predictions = store.find(sorted({request_id for request_id, _ in labels}))
    kinds: dict[str, OutputKind | None] = {}
    found: list[tuple[Prediction, Deviation]] = []
    joined = 0
    for label in labels.values():
        rows = _rows(label, predictions.get(label.request_id, []))
        joined += bool(rows)
        for each in rows:
            if each.digest not in kinds:
                kinds[each.digest] = store.kind(each.digest)
            kind = kinds[each.digest]
            assert kind is not None  # it has a row
            try:
                found.append((each, deviation(kind, each.answer, label.value)))
            except ValueError as error:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"line {label.line}: {error}",
                    "The label is compared with the model's first output. Nothing of the file was "
                    "taken.",
                ) from error
    return found, joined


def _rows(label: Label, predictions: list[Prediction]) -> list[Prediction]:
    """Return the answers to the label's row, of each revision that gave one."""
    if label.row is not None:
        return [each for each in predictions if each.row == label.row]
    if any(each.row for each in predictions):
        count = 1 + max(each.row for each in predictions)
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"line {label.line}: the request has {count} rows and the label names none",
            "Add a column `row`: 0 is the first row of the request.",
        )
    return predictions


def _bentos(deployment: Deployment, rollouts: Iterable[Rollout]) -> dict[str, str]:
    """Return the Bento of each digest that recorded answers may have."""
    revisions = [deployment.live]
    for rollout in rollouts:
        revisions += [rollout.live, rollout.candidate]
    return {digest: each.bento for each in revisions for digest in each.recorded}


def _named(accuracy: Accuracy, bentos: Mapping[str, str]) -> RevisionAccuracy:
    return RevisionAccuracy(
        bentos.get(accuracy.digest, accuracy.digest[:12]),
        accuracy.digest,
        accuracy.requests,
        1.0 - accuracy.wrong / accuracy.requests,
        accuracy.mean_error,
    )


def _nothing_recorded(name: str) -> MlctlError:
    return MlctlError(
        ErrorCode.NOT_FOUND,
        f"no prediction of {name!r} is recorded",
        f"A rollout with `mlctl promote {name} BENTO --min-accuracy 0.9` records predictions, and "
        f"so does `mlctl up {name} BENTO --record-share 0.1` at all times.",
    )
