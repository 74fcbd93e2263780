"""Cold starts of a Bento: seconds from its process to ready, and to the first answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from mlctl.loadtest.runs import RequestShape, first_answer
from mlctl.loadtest.server import serving

# What services/online/models/served_model.py logs of each model.
_LOADED = re.compile(r"model (\S+): loaded in ([\d.]+) s, proved and warmed up in ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One start, in seconds: the stages up to ready, ready, and the first answer.

    `process_s` is what is left of `ready_s`: Python, imports, and the verification of the bundle.
    """

    process_s: float
    load_s: float
    warm_up_s: float
    ready_s: float
    first_answer_s: float

    @classmethod
    def of(cls, log: str, ready_s: float, answer_s: float) -> ColdStart:
        """Return the start of a server with this log.

        Models load one after the other; of several workers the slowest counts.
        """
        models: dict[str, tuple[float, float]] = {}
        for name, load, warm_up in _LOADED.findall(log):
            models[name] = max(models.get(name, (0.0, 0.0)), (float(load), float(warm_up)))
        load_s = sum(load for load, _ in models.values())
        warm_up_s = sum(warm_up for _, warm_up in models.values())
        return cls(ready_s - load_s - warm_up_s, load_s, warm_up_s, ready_s, ready_s + answer_s)


def cold_starts(bento: str, shape: RequestShape, count: int) -> Iterator[ColdStart]:
    """Start the server of `bento` `count` times, one after the other.

    UNAVAILABLE if it does not become ready, or rejects the request.
    """
    for _ in range(count):
        with serving(bento, shape.protocol) as served:
            assert served.log is not None
            assert served.ready_seconds is not None
            answer_s = first_answer(served, shape)
            log = served.log.read_text(errors="replace")
        yield ColdStart.of(log, served.ready_seconds, answer_s)


def summary(starts: Sequence[ColdStart]) -> dict[str, dict[str, float]]:
    """Return p50, p90 and the maximum of each field, in seconds."""
    names = [field.name for field in fields(ColdStart)]
    values = np.array([[getattr(start, name) for name in names] for start in starts])
    rows = {
        "p50": np.percentile(values, 50, axis=0),
        "p90": np.percentile(values, 90, axis=0),
        "max": values.max(axis=0),
    }
    return {
        name: {row: round(float(found[index]), 3) for row, found in rows.items()}
        for index, name in enumerate(names)
    }


def as_document(bento: str, starts: Sequence[ColdStart]) -> dict[str, Any]:
    """Return the starts for scripts."""
    return {
        "bento": bento,
        "starts": [{k: round(v, 3) for k, v in asdict(each).items()} for each in starts],
        "summary": summary(starts),
    }
