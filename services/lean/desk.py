"""Known requests, a turn of the event loop and a batch at a time: queued, answered, counted.

What one request costs is in the loops here; all else is done once for many. The answers are,
byte for byte, those that `Inference.answer` gives.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from services.batching.joining import Arrays, Share, cut
from services.batching.shell import Answer
from services.inference import Asked, Inference, timing
from services.lean.known import Known
from services.lean.plans import Plan, make_plan
from services.lean.refusals import Refusals
from services.lean.texts import read_all

if TYPE_CHECKING:
    from services.batching.desks import Told
    from services.lean.repeat import RepeatCycle

_STATUS = b"HTTP/1.1 200 OK\r\n"
_MOMENT = b"server-timing: %b\r\nx-request-id: "


class Turn:
    """The requests that came in one turn of the loop; to read each took `parse` seconds."""

    __slots__ = ("parse",)

    def __init__(self) -> None:
        self.parse = 0.0


class RepeatDesk:
    """Speaks for the known requests of one model's connections."""

    def __init__(self, inference: Inference) -> None:
        self.refusals = Refusals(inference)
        self._inference = inference
        self._arrived: list[RepeatCycle] = []
        self._turn = Turn()
        self._began = 0.0

    def arrive(self, cycle: RepeatCycle) -> Turn:
        """A request came; it is queued with all others of this turn, which is returned."""
        if not self._arrived:
            self._turn, self._began = Turn(), perf_counter()
            asyncio.get_running_loop().call_soon(self._submit)
        self._arrived.append(cycle)
        return self._turn

    def _submit(self) -> None:
        arrived, self._arrived = self._arrived, []
        waiting = [cycle for cycle in arrived if not cycle.response_complete]
        seconds = self._inference.seconds
        for cycle in waiting:
            wanted = cycle.known.timeout
            cycle.timeout = seconds if wanted is None or wanted > seconds else wanted
        try:
            if texts := [cycle for cycle in waiting if cycle.places]:
                read_all(texts, self._inference)
                waiting = [cycle for cycle in waiting if not cycle.response_complete]
            self._turn.parse = (perf_counter() - self._began) / len(arrived)
            self._inference.submit_all(waiting, self)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            for cycle in waiting:
                if not cycle.response_complete:
                    self._inference.withdraw(cycle)
                    cycle.set_exception(error)

    def answer(self, told: list[Told], seconds: float) -> None:
        """See `services.batching.desks.Desk`."""
        before = perf_counter()
        outputs: Arrays | None = None
        waited, moment = -1.0, b""
        plans = dict[Known, Plan | None]()
        ready: list[tuple[RepeatCycle, bytes]] = []
        turns: dict[Turn, tuple[int, float]] = {}
        cycle: RepeatCycle
        state: Any = None
        headers = b""
        for cycle, share, wait in told:
            if share[0] is not outputs:
                outputs, plans = share[0], {}
            if wait != waited:
                waited, moment = wait, _MOMENT % timing(wait, seconds)
            known = cycle.known
            if known not in plans:
                plans[known] = self._try_plan(known, share)
            plan = plans[known]
            if plan is None or not cycle.keep_alive:
                self._answer_alone(cycle, share, wait, seconds)
                continue
            start, chunks = plan.parts(share[1], share[1] + known.rows)
            if cycle.protocol.server_state is not state:
                state, headers = cycle.protocol.server_state, cycle.protocol.server_headers()
            parts = (_STATUS, headers, start, moment, cycle.request_id(), plan.end, *chunks)
            ready.append((cycle, b"".join(parts)))
            turns[cycle.turn] = (turns[cycle.turn][0] + 1 if cycle.turn in turns else 1, wait)
        serialize = (perf_counter() - before) / max(1, len(ready))
        for cycle, content in ready:
            cycle.send(content)
        # Who waits need not wait for this, too.
        for turn, (count, wait) in turns.items():
            self._inference.answered(count, turn.parse, wait, seconds, serialize)

    def _answer_alone(self, cycle: RepeatCycle, share: Share, wait: float, seconds: float) -> None:
        """The long way: an answer that is packed or ends its connection, or that failed."""
        asked = Asked(cycle.known.head._replace(request_id=cycle.request_id()))
        asked.request, asked.parse_seconds = cycle.known.request, cycle.turn.parse
        rows = next(iter(share[0].values())).shape[0] if share[0] else 0
        try:
            answer = Answer(cut(share), wait, seconds, rows)
            response = self._inference.answer(asked, answer)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            cycle.set_exception(error)
        else:
            cycle.send_response(response)

    def _try_plan(self, known: Known, share: Share) -> Plan | None:
        try:
            return make_plan(self._inference, known, share)
        except Exception:  # noqa: BLE001 - it is met again, and told, on the long way
            return None
