"""Labels of files joined to recorded predictions, as `mlctl feedback` and Python users do it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.feedback import FeedbackReport, add_feedback
from mlctl.rollout.client.label_file import read_label_stream, read_labels
from mlctl.rollout.client.rendering import event_line
from mlctl.rollout.domain.shadow.join import Recorded
from mlctl.rollout.domain.shadow.labels import Label
from mlctl.rollout.domain.spec import DeploymentSettings, Ports, RolloutSpec
from mlctl.rollout.drivers.local.samples import SampleFolder
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.predictions import PredictionStore
from tests.support.rollouts import revision

LIVE, CANDIDATE = revision("tiny:aa"), revision("tiny:bb")


@pytest.fixture
def shop(home: Path) -> None:  # noqa: ARG001 - the state directory
    """The deployment `shop` by the record, with a rollout; no process runs."""
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), DeploymentSettings(), LIVE)
        journal.begin("shop", CANDIDATE, RolloutSpec(min_accuracy=0.9))


def predicted(*rows: tuple[str, int, str, Sequence[float]]) -> None:
    """Record these answers: request, row, digest and the scores of three classes."""
    path = SampleFolder(paths.directory("shop")).predictions
    with PredictionStore(path) as store:
        store.add(
            [
                Recorded((name, row), digest, 100.0, {"probs": np.asarray(scores)}, path, 0)
                for name, row, digest, scores in rows
            ],
            100.0,
        )


def two_answers() -> None:
    predicted(
        ("a", 0, LIVE.digest, [0.1, 0.8, 0.1]),
        ("a", 0, CANDIDATE.digest, [0.8, 0.1, 0.1]),
        ("b", 0, LIVE.digest, [0.1, 0.1, 0.8]),
    )


def feed(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["feedback", "shop", *arguments], input=stdin)


@pytest.mark.usefixtures("shop")
def test_feedback__labels_of_two_revisions__reports_each_and_records_an_event() -> None:
    two_answers()
    labels = [Label("a", 1.0, 2), Label("b", 1.0, 3), Label("c", 1.0, 4), Label("b", 2.0, 5)]
    report = add_feedback("shop", labels)
    assert (report.labels, report.joined, report.unknown, report.repeated) == (4, 2, 1, 1)
    found = {each.bento: (each.requests, each.accuracy) for each in report.revisions}
    assert found == {"tiny:aa": (2, 1.0), "tiny:bb": (1, 0.0)}
    with Journal(paths.journal()) as journal:
        event = journal.events("shop")[-1]
    assert (event.kind, event.rollout) == ("feedback", 1)
    line = event_line(event) or ""
    assert "2 labels, 1 of unknown requests" in line
    assert "tiny:bb: 0.0 % of 1 labelled requests answered right" in line


@pytest.mark.usefixtures("shop")
def test_feedback__label_of_an_earlier_call__is_replaced() -> None:
    two_answers()
    assert add_feedback("shop", [Label("b", 0.0, 1)]).revisions[0].accuracy == 0.0
    assert add_feedback("shop", [Label("b", 2.0, 1)]).revisions[0].accuracy == 1.0


@pytest.mark.usefixtures("shop")
def test_feedback__nothing_recorded__says_how_to_record() -> None:
    with pytest.raises(MlctlError) as caught:
        add_feedback("shop", [])
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert "--record-share" in (caught.value.hint or "")


@pytest.mark.usefixtures("shop")
def test_feedback__one_label_does_not_fit__names_its_line_and_takes_none() -> None:
    two_answers()
    with pytest.raises(MlctlError, match="line 9: 'cat' is not a number"):
        add_feedback("shop", [Label("a", 1.0, 8), Label("b", "cat", 9)])
    assert add_feedback("shop", []) == FeedbackReport(0, 0, 0, 0, ())


@pytest.mark.usefixtures("shop")
def test_feedback__request_of_several_rows__needs_the_row() -> None:
    predicted(*(("a", row, LIVE.digest, [0.1, 0.8, 0.1]) for row in range(3)))
    with pytest.raises(MlctlError, match="line 2: the request has 3 rows"):
        add_feedback("shop", [Label("a", 1.0, 2)])
    report = add_feedback("shop", [Label("a", 1.0, 2, row=0), Label("a", 0.0, 3, row=2)])
    assert report.revisions[0].accuracy == 0.5


CSV = "request_id,label,customer\na,1,x\nb,2,y\n"
JSON_LINES = '{"request_id": "a", "label": 1}\n\n{"request_id": "b", "label": "2", "row": 0}\n'


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("name", "text"), [("l.csv", CSV), ("l.jsonl", JSON_LINES)])
def test_feedback_command__file_or_stdin__joins_its_labels(
    tmp_path: Path, name: str, text: str
) -> None:
    two_answers()
    (tmp_path / name).write_text(text)
    for result in (feed(str(tmp_path / name), "--json"), feed("-", "--json", stdin=text)):
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert (document["name"], document["labels"], document["joined"]) == ("shop", 2, 2)
    shown = feed(str(tmp_path / name)).stdout
    assert "2 of 2 labels belong to a recorded prediction, 0 to none" in shown
    assert "tiny:aa: 100.0 % of 2 labelled requests answered right" in shown


@pytest.mark.usefixtures("shop")
def test_feedback_command__parquet__joins_its_labels(tmp_path: Path) -> None:
    two_answers()
    path = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"request_id": ["a", "b"], "label": pa.array([1, 2])}), path)
    assert json.loads(feed(str(path), "--json").stdout)["joined"] == 2


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("l.csv", "request_id\na\n", "l.csv: line 1: the column label is missing"),
        ("l.csv", "", "l.csv: line 1: the column label is missing"),
        ("l.csv", "request_id,label\na,1\n,2\n", "line 3: request_id"),
        ("l.csv", 'request_id,label\na,"1\n', "line 2: unexpected end of data"),
        ("l.csv", "request_id,label,row\na,1,x\n", "line 2: row: input should be a valid int"),
        ("l.jsonl", '{"request_id": "a", "label": 1}\n{"request', "line 2: it is not JSON"),
        ("l.jsonl", "[1]\n", "line 1: it is not a JSON object"),
        ("l.jsonl", '{"request_id": "a"}\n', "line 1: label: field required"),
        ("l.jsonl", '{"request_id": "a", "label": null}\n', "line 1: label"),
        ("l.jsonl", '{"request_id": "a", "label": 1, "row": -1}\n', "line 1: row"),
        ("l.parquet", "torn", "l.parquet: it is not a readable Parquet file"),
        ("l.txt", CSV, "its format is unknown"),
    ],
)
def test_feedback_command__malformed_file__names_the_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    two_answers()
    (tmp_path / name).write_text(text)
    result = feed(str(tmp_path / name), "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (2, "invalid_input")
    assert said in error["message"]


def test_read_labels__file_that_is_no_text__is_invalid(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"request_id,label\n\xff\xfe,1\n")
    with pytest.raises(MlctlError, match="not UTF-8"):
        list(read_labels(tmp_path / "l.csv"))


def test_read_labels__json_values__keep_their_types(tmp_path: Path) -> None:
    values = [1, 1.5, True, "cat", [1.0, 2.0]]
    path = tmp_path / "l.jsonl"
    lines = [json.dumps({"request_id": "a", "label": value}) for value in values]
    path.write_text("\n".join(lines))
    found = [label.value for label in read_labels(path)]
    assert [(type(each), each) for each in found] == [
        (float, 1.0), (float, 1.5), (bool, True), (str, "cat"), (list, [1.0, 2.0]),
    ]  # fmt: skip


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_LINES = st.dictionaries(st.sampled_from(["request_id", "label", "row", "x"]), _VALUES)
_TEXTS = (
    st.text()
    | st.lists(_LINES.map(json.dumps), max_size=3).map("\n".join)
    | st.text(alphabet='a1,"\n\0').map(lambda rest: f"request_id,label,row\n{rest}")
)


@given(_TEXTS)
def test_read_label_stream__any_text__is_labels_or_invalid(text: str) -> None:
    try:
        found = list(read_label_stream(io.StringIO(text)))
    except MlctlError as error:
        assert error.code is ErrorCode.INVALID_INPUT
        return
    for label in found:
        assert 1 <= len(label.request_id.encode()) <= 4 * 128
        assert label.row is None or label.row >= 0
