"""What a deployment predicted, kept until the labels come: one private SQLite file per deployment.

The daemon adds what the servers recorded; `mlctl feedback` adds how far each answer was from its
label; the daemon reads the sums. Rows are deleted after `keep_seconds`, and the oldest ones beyond
a size.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from mlctl.bundle.output_kinds import OutputKind, output_kind
from mlctl.rollout.domain.shadow.join import Recorded
from mlctl.rollout.domain.shadow.labels import Deviation
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Hits
from mlctl.rollout.journal.schema import open_database, transaction

VERSION = 1
MAX_BYTES = 1 << 30
_KIND_ROWS = 64  # rows from which the kind of an output is recognized
_IDS_PER_QUERY = 500
_PRUNE_SECONDS = 60.0
_TEXT = "text"

# `answer` is null where two requests had the same id: neither can be labelled. `error` is null
# before the label came, and infinite for a wrong class.
SCHEMA = """
create table prediction (
    request_id text not null,
    row integer not null,
    digest text not null,
    at real not null,
    output text not null,
    dtype text not null,
    shape text not null,
    answer blob,
    error real,
    magnitude real,
    primary key (request_id, row, digest)
);
create index prediction_at on prediction (at);
create index prediction_of on prediction (digest);
create index labelled on prediction (digest, at) where error is not null;
"""

_WRONG = "error > coalesce(:max_error, :tolerance * magnitude)"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The first output's answer to one row of a request."""

    request_id: str
    row: int
    digest: str
    answer: np.ndarray


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How a revision did on its labelled requests.

    `wrong` is a sum of shares: of each request, that of its labelled rows that are wrong.
    `mean_error` is the mean distance of numbers from their labels, None for classes.
    """

    digest: str
    requests: int
    wrong: float
    mean_error: float | None


class PredictionStore:
    """The predictions at `path`. One object per thread; any number of processes."""

    def __init__(self, path: Path, keep_seconds: float = math.inf) -> None:
        """Open the store, made private if it is not there; INVALID_INPUT if it cannot be used."""
        if not path.exists():
            path.touch(mode=0o600)
        self._db = open_database(path, SCHEMA, VERSION)
        self._db.row_factory = sqlite3.Row
        self._keep_seconds = keep_seconds
        self._pruned = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, rows: Iterable[Recorded], now: float) -> None:
        """Keep these answers. The same one again changes nothing.

        Answers to different requests of one id are kept as ambiguous.
        """
        values = [_values(row) for row in rows if row.answer]
        if values:
            with transaction(self._db):
                self._db.executemany(
                    "insert into prediction values (?, ?, ?, ?, ?, ?, ?, ?, null, null)"
                    " on conflict do update set answer = null, error = null"
                    " where at <> excluded.at",
                    values,
                )
        if now - self._pruned >= _PRUNE_SECONDS:
            self._pruned = now
            self.prune(now)

    def prune(self, now: float, max_bytes: int = MAX_BYTES) -> None:
        """Delete what is too old, then the oldest tenth until the rest is within `max_bytes`."""
        if math.isfinite(self._keep_seconds):
            oldest = now - self._keep_seconds
            self._db.execute("delete from prediction where at < ?", (oldest,))
        while self._size() > max_bytes:
            deleted = self._db.execute(
                "delete from prediction where at <= (select at from prediction order by at"
                " limit 1 offset (select count(*) / 10 from prediction))"
            )
            if not deleted.rowcount:
                return

    def _size(self) -> int:
        pages, free, size = (
            int(self._db.execute(f"pragma {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def version(self) -> int:
        """Return a number that changes when another connection has written."""
        return int(self._db.execute("pragma data_version").fetchone()[0])

    def find(self, request_ids: Sequence[str]) -> dict[str, list[Prediction]]:
        """Return the predictions of these requests by id, of all revisions that answered them."""
        found: dict[str, list[Prediction]] = {}
        for begin in range(0, len(request_ids), _IDS_PER_QUERY):
            ids = request_ids[begin : begin + _IDS_PER_QUERY]
            marks = ", ".join("?" * len(ids))
            rows = self._db.execute(
                f"select * from prediction where request_id in ({marks})"  # noqa: S608 - only question marks
                " and answer is not null order by row",
                ids,
            )
            for row in rows:
                each = Prediction(row["request_id"], row["row"], row["digest"], _answer(row))
                found.setdefault(each.request_id, []).append(each)
        return found

    def kind(self, digest: str) -> OutputKind | None:
        """Return the kind of a revision's first output, from its oldest rows; None without any."""
        rows = self._db.execute(
            "select * from prediction where digest = ? and answer is not null order by rowid"
            " limit ?",
            (digest, _KIND_ROWS),
        ).fetchall()
        if not rows:
            return None
        answers = [_answer(row) for row in rows]
        alike = [each for each in answers if each.shape == answers[0].shape]
        return output_kind(rows[0]["output"], np.stack(alike))

    def label(self, found: Iterable[tuple[Prediction, Deviation]]) -> None:
        """Record how far these predictions are from their labels, all or none."""
        with transaction(self._db):
            self._db.executemany(
                "update prediction set error = ?, magnitude = ?"
                " where request_id = ? and row = ? and digest = ?",
                [
                    (each.error, each.magnitude, of.request_id, of.row, of.digest)
                    for of, each in found
                ],
            )

    def blocks(self, digests: Iterable[str], spec: RolloutSpec) -> list[Hits]:
        """Return (wrong, labelled) requests per `spec.burst_seconds`, oldest first."""
        rows = self._db.execute(
            "select sum(wrong), count(*) from"  # noqa: S608 - literals
            f" (select min(at) as at, avg({_WRONG}) as wrong from prediction"
            "  where error is not null and digest in (select value from json_each(:digests))"
            "  group by request_id)"
            " group by cast(at / :block as integer) order by min(at)",
            {**_limits(spec), "digests": json.dumps(sorted(digests)), "block": spec.burst_seconds},
        )
        return [(float(wrong), int(requests)) for wrong, requests in rows]

    def accuracies(self, spec: RolloutSpec) -> list[Accuracy]:
        """Return how each revision did on all of its labelled requests."""
        rows = self._db.execute(
            "select digest, count(*), sum(wrong), avg(error) from"  # noqa: S608 - literals
            f" (select digest, avg({_WRONG}) as wrong,"
            "  avg(case when error < 9e999 then error end) as error from prediction"
            "  where error is not null group by digest, request_id)"
            " group by digest order by digest",
            _limits(spec),
        )
        return [
            Accuracy(digest, requests, wrong, mean or None)
            for digest, requests, wrong, mean in rows
        ]


def _limits(spec: RolloutSpec) -> Mapping[str, Any]:
    return {"max_error": spec.max_label_error, "tolerance": spec.tolerance}


def _values(row: Recorded) -> tuple[object, ...]:
    output, answer = next(iter(row.answer.items()))
    (request_id, number), shape = row.key, json.dumps(answer.shape)
    if answer.dtype == object:  # text, as bytes
        texts = [_text(value) for value in answer.ravel().tolist()]
        dtype, blob = _TEXT, json.dumps(texts).encode()
    else:
        dtype, blob = answer.dtype.str, answer.tobytes()
    return request_id, number, row.digest, row.at, output, dtype, shape, blob


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _answer(row: Mapping[str, Any]) -> np.ndarray:
    shape = json.loads(row["shape"])
    if row["dtype"] == _TEXT:
        return np.asarray(json.loads(row["answer"]), dtype=object).reshape(shape)
    return np.frombuffer(row["answer"], np.dtype(row["dtype"])).reshape(shape)
