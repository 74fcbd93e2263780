"""Lines in the server's log about slow requests, with the time of each stage.

The observer's thread writes them: at most `_LINES` at a time, so that overload does not fill the
log, and then how many there were besides.
"""

from __future__ import annotations

import logging

from mlctl.services.online.observability.backlog import Backlog
from mlctl.services.online.observability.calls import RequestRecord

_MAX_WAITING = 4096
_LINES = 10
_STAGES = ("parse", "queue", "infer", "serialize")
logger = logging.getLogger("mlctl.slow")


class SlowLog:
    """Logs the requests to `model` that took at least `limit` seconds."""

    def __init__(self, limit: float, model: str) -> None:
        self._limit = limit
        self._model = model
        self._waiting = Backlog[RequestRecord](_MAX_WAITING)
        self._reported = 0

    @property
    def dropped(self) -> int:
        """Slow requests without a line, because they came too fast."""
        return self._waiting.dropped

    def put(self, record: RequestRecord) -> None:
        """Take an ended request; a fast one is ignored."""
        if record.seconds >= self._limit:
            self._waiting.put(record)

    def flush(self) -> None:
        """Log the requests taken so far."""
        records = list(self._waiting.take())
        for record in records[:_LINES]:
            logger.warning("%s", self._describe(record))
        more, self._reported = self.dropped - self._reported, self.dropped
        more += max(0, len(records) - _LINES)
        if more:
            logger.warning("%d more requests to model %s were slow", more, self._model)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _describe(self, record: RequestRecord) -> str:
        known = {stage: getattr(record, stage) for stage in _STAGES}
        stages = [f"{name} {1e3 * each:.1f} ms" for name, each in known.items() if each is not None]
        text = (
            f"slow request {record.request_id.decode('latin-1')}: {1e3 * record.seconds:.1f} ms "
            f"(limit {1e3 * self._limit:g} ms), model {self._model}, {record.protocol}, "
            f"{record.code}"
        )
        if record.client:
            text += f", client {record.client}"
        if stages:
            text += f": {', '.join(stages)}"
        if record.rows is not None:
            text += f"; {record.rows} rows in a batch of {record.batch_rows}"
        return text
