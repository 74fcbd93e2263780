"""A stream killed by SIGKILL at every step of its commits: nothing is lost, nothing is doubled.

The runs are forked from this process, on a real log in a file. The points are before each
statement of a commit, and before the first one after it. A run that was killed is followed by
another that is killed a little later, and by one that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import ConnectionRequest, Guarantee, Outgoing, StreamUrl
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings, StreamEngine
from mlctl.services.stream.scoring import MessageScorer
from mlctl.services.stream.transports.sqlite import SqliteConnection, SqliteTransport, transport
from tests.services.stream.test_scoring import Doubling, Numbers
from tests.support.forked import run_forked

MESSAGES = 40
BATCH = 8
POISONED = frozenset(np.random.default_rng(7).choice(MESSAGES, 5, replace=False).tolist())
# Of each of the commits at least so many: the position, the answers' place and the answers,
# the end of the transaction, and what comes after it.
POINTS = 5 * MESSAGES // BATCH
KILLS = 40


class Points:
    """Counts the statements of commits, and kills this process at the `kill_at`-th of them."""

    def __init__(self, kill_at: int = 0) -> None:
        self.passed: list[str] = []
        self._kill_at = kill_at
        self._committing = False

    def __call__(self, statement: str) -> None:
        self._committing |= statement.startswith("UPDATE positions SET committed")
        if not self._committing:
            return
        self._committing = not self.passed or self.passed[-1] != "COMMIT"
        self.passed.append(" ".join(statement.split()[:3]))
        if len(self.passed) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class EndingConnection(SqliteConnection):
    """Of a stream to which nothing is added: a run ends at its end, without a wait."""

    @property
    def ended(self) -> bool:
        lag = self.lag()
        return bool(lag) and not sum(lag.values())


def place_of(folder: Path) -> StreamUrl:
    # Whoever was killed cannot leave: its lease has to run out.
    return StreamUrl.parse(f"sqlite://{folder / 'events.db'}?lease=0.05#in")


def run(folder: Path, points: Points) -> None:
    source = place_of(folder)
    link = EndingConnection(
        ConnectionRequest(source, "g", source.with_topic("out"), source.with_topic("dead"))
    )
    stamp = AnswerHeaders(source, "tiny", "d" * 64)
    settings = RunSettings(BatchGoals(messages=BATCH), dead_share=1.0)
    with link:
        link._log.db.set_trace_callback(points)
        scorer = MessageScorer(Doubling(), Numbers())
        StreamEngine(link, scorer, stamp, settings, lambda _event: None, threading.Event()).run()
        link._log.db.set_trace_callback(None)


def in_child(folder: Path, kill_at: int = 0) -> int:
    """Run in a forked process that is killed at a point; its wait status."""
    return run_forked(lambda: run(folder, Points(kill_at)))


def killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_history(folder: Path, *, complete: bool) -> None:
    """Answers and dead letters are those of the messages before the position, each once."""
    source = place_of(folder)
    answers = [*transport.browse(source.with_topic("out"))]
    dead = [*transport.browse(source.with_topic("dead"))]
    done = [
        int((dict(m.headers)["mlctl-source"] or b"").rpartition(b"/")[2]) for m in answers + dead
    ]
    with sqlite3.connect(source.address) as db:
        rows = db.execute("SELECT committed FROM positions").fetchall()
    db.close()
    position = rows[0][0] if rows else -1
    assert sorted(done) == [*range(position + 1)], "lost or doubled"
    assert [m.value for m in answers] == [
        b"%d" % (200 + 2 * n) for n in range(position + 1) if n not in POISONED
    ]
    assert len(dead) == len(POISONED & {*range(position + 1)})
    assert not complete or position == MESSAGES - 1


def begin(folder: Path) -> None:
    folder.mkdir()
    values = [b"13" if n in POISONED else b"%d" % (100 + n) for n in range(MESSAGES)]
    with SqliteTransport().open_producer(place_of(folder)) as producer:
        producer.publish([Outgoing(value) for value in values])
    with sqlite3.connect(place_of(folder).address) as db:
        # One file that can be copied.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


@pytest.mark.slow
def test_stream__killed_at_each_statement_of_its_commits__each_message_is_answered_once(
    tmp_path: Path,
) -> None:
    assert SqliteConnection.guarantee is Guarantee.EXACTLY_ONCE
    begin(tmp_path / "begun")
    shutil.copytree(tmp_path / "begun", tmp_path / "unharmed")
    unharmed = Points()
    run(tmp_path / "unharmed", unharmed)
    check_history(tmp_path / "unharmed", complete=True)
    assert {"UPDATE positions SET", "INSERT INTO messages", "COMMIT"} <= {*unharmed.passed}
    assert len(unharmed.passed) >= POINTS
    kills = 0
    for point in range(1, POINTS + 1):
        folder = tmp_path / str(point)
        shutil.copytree(tmp_path / "begun", folder)
        assert killed(in_child(folder, point)), unharmed.passed[point - 1]
        check_history(folder, complete=False)
        kills += 1 + killed(in_child(folder, 1 + 3 * point % 7))
        check_history(folder, complete=False)
        assert in_child(folder) == 0, unharmed.passed[point - 1]
        check_history(folder, complete=True)
    assert kills >= KILLS
