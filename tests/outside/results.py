"""The committed verdicts, `results.csv`, a line for each case; how a run differs from them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.outside.case import Case
from tests.outside.judge import Outcome, Verdict

RESULTS = Path(__file__).with_name("results.csv")
_HEAD = ("group", "model", "verdict", "reason")


class Key(NamedTuple):
    """What names a case."""

    group: str
    name: str


def key_of(case: Case) -> Key:
    """Return the key of a case."""
    return Key(case.group, case.name)


def read_results() -> dict[Key, Outcome]:
    """Return the committed verdicts in their order."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        assert tuple(next(rows)) == _HEAD
        return {
            Key(group, name): Outcome(Verdict(verdict), reason)
            for group, name, verdict, reason in rows
        }


def write_results(found: Mapping[Key, Outcome]) -> None:
    """Replace the committed verdicts."""
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEAD)
        for key, each in found.items():
            writer.writerow((*key, each.verdict, " ".join(each.reason.split())))


def differences(found: Mapping[Key, Outcome], known: Mapping[Key, Outcome]) -> Iterator[str]:
    """Yield a sentence for each case whose verdict or reason is not the committed one."""
    for key, outcome in found.items():
        name, before = f"{key.name} ({key.group})", known.get(key)
        if outcome.verdict is Verdict.FAILED:
            yield f"{name} failed: {outcome.reason}"
        elif before is None:
            yield f"{name} has no line: it is {outcome.verdict}. {outcome.reason}"
        elif outcome.verdict is Verdict.ACCEPTED and before.verdict is not Verdict.ACCEPTED:
            yield f"{name} is accepted now, and listed as {before.verdict}: change its line"
        elif outcome.verdict is not before.verdict:
            yield f"{name} was {before.verdict} and is {outcome.verdict}: {outcome.reason}"
        elif outcome.verdict is Verdict.REJECTED and outcome.reason != before.reason:
            yield f"{name} is rejected with another sentence: {outcome.reason}"
