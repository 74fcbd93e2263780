"""The gate service over HTTP: JSON for Argo Rollouts' web metric, status codes for Flagger.

`/gates/ID?blue=..&green=..` answers 200 with the result in words. `/flagger/HOOK` takes
Flagger's own body; there only the status counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import Percent, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Verdict
from mlctl.rollout.domain.traffic import slo
from mlctl.rollout.gate_service.service import GateService
from mlctl.rollout.gate_service.session import Result, result_of
from mlctl.rollout.gate_service.store import Terms

_LONGEST_BODY = 64 << 10


class _Query(BaseModel):
    """The parameters of one request; a limit that is not given has the default of `promote`."""

    model_config = ConfigDict(extra="forbid")

    blue: Annotated[str, Field(min_length=1)]
    green: Annotated[str, Field(min_length=1)]
    weight: Percent | None = None
    final: bool = True
    slo: str | None = None
    max_p99_ms: float | None = None
    max_p50_ms: float | None = None
    max_error_rate: float | None = None
    alpha: float | None = None
    margin: float | None = None
    min_requests: int | None = None

    def spec(self) -> RolloutSpec:
        """Return the limits, counted at the servers' edges; INVALID_INPUT."""
        p50, p99 = slo.limits(self.slo, self.max_p50_ms, self.max_p99_ms)
        limits = {"max_error_rate", "alpha", "margin", "min_requests"}
        given = self.model_dump(include=limits, exclude_none=True)
        spec = RolloutSpec(max_p50_ms=p50, max_p99_ms=p99, **given)
        return slo.counted(spec, SERVED_EDGES_MS)


# Which results let Flagger go on, by hook; `rollback` means the opposite.
_PASSES = {
    "rollout": {Result.SUCCESS, Result.INCONCLUSIVE},
    "confirm-traffic-increase": {Result.SUCCESS},
    "confirm-promotion": {Result.SUCCESS},
    "rollback": {Result.FAILURE},
}


def gate_app(service: GateService) -> Starlette:
    """The ASGI application."""

    async def gate(request: Request) -> JSONResponse:
        name = request.path_params["id"]
        if request.method == "DELETE":
            await run_in_threadpool(service.forget, name)
            return JSONResponse({"id": name})
        verdict = await _answer(service, name, dict(request.query_params))
        return JSONResponse(_document(name, verdict))

    async def flagger(request: Request) -> JSONResponse:
        hook = request.path_params["hook"]
        if hook not in _PASSES:
            raise MlctlError(
                ErrorCode.NOT_FOUND, f"no hook {hook!r}", f"There are: {', '.join(_PASSES)}."
            )
        name, terms = _canary(await _body(request))
        final = "true" if hook == "confirm-promotion" else "false"
        verdict = await _answer(service, name, {**terms, "final": final})
        status = 200 if result_of(verdict) in _PASSES[hook] else 409
        return JSONResponse(_document(name, verdict), status)

    async def health(_request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/gates/{id}", gate, methods=["GET", "POST", "DELETE"]),
            Route("/flagger/{hook}", flagger, methods=["POST"]),
        ],
        exception_handlers={MlctlError: _error_response},
    )


async def _answer(service: GateService, name: str, parameters: Mapping[str, str]) -> Verdict:
    try:
        query = _Query.model_validate(parameters)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"parameter {fault['loc'][0]!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}",
            f"There are: {', '.join(sorted(_Query.model_fields))}.",
        ) from error
    terms = Terms(query.blue, query.green, query.spec())
    return await run_in_threadpool(
        service.evaluate, name, terms, weight=query.weight, final=query.final
    )


def _canary(body: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The session and the parameters in Flagger's body; a new revision is a new session."""
    metadata = body.get("metadata") or {}
    parts = [str(body.get(key, "")) for key in ("namespace", "name", "checksum")]
    if not all(parts[:2]) or not isinstance(metadata, dict):
        raise _invalid("the body is not that of a Flagger webhook: name and namespace are missing")
    return ":".join(part for part in parts if part), {k: str(v) for k, v in metadata.items()}


async def _body(request: Request) -> Mapping[str, Any]:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _LONGEST_BODY:
            raise MlctlError(ErrorCode.PAYLOAD_TOO_LARGE, "the body is too long for a webhook's")
        parts.append(part)
    try:
        document = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise _invalid("the body is no JSON") from error
    if not isinstance(document, dict):
        raise _invalid("the body is no JSON object")
    return document


def _document(name: str, verdict: Verdict) -> dict[str, Any]:
    found = asdict(verdict)
    del found["action"]
    return {"id": name, "result": result_of(verdict), **found}


async def _error_response(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MlctlError)
    return JSONResponse({"error": error.as_dict()}, error.spec.http)


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
