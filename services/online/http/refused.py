"""What a call of `/predict` is refused with, past BentoML to who answers in its place.

BentoML tells callers the sentence of an exception only below 500, without its code and
headers, and logs each with a traceback: under overload that would be most of the work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus

from bentoml.exceptions import BentoMLException
from pydantic import ValidationError

from bundle.errors import MlctlError
from services.online.http.limits import CutOffError

_ARGUMENTS = "Input"  # as BentoML's model of them is called

_listening: ContextVar[list[MlctlError] | None] = ContextVar("mlctl_refused", default=None)


class RefusedError(BentoMLException):
    """`error`, in the form that BentoML knows."""

    def __init__(self, error: MlctlError) -> None:
        super().__init__(error.message, error_code=HTTPStatus(error.spec.http))
        heard = _listening.get()
        if heard is not None:
            heard.append(error)


@contextmanager
def refusals() -> Iterator[list[MlctlError]]:
    """A list of what is refused meanwhile, in this task and in those that it starts."""
    heard: list[MlctlError] = []
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)


def keep_out_of_log() -> None:
    """BentoML's log has no line for a refusal: it is counted, and in the access log."""
    from bentoml._internal.server import http_app

    http_app.logger.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):
        return error.title != _ARGUMENTS
    return not isinstance(error, (RefusedError, CutOffError))
