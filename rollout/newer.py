"""Reading values that a newer mlctl may have written into the journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from bundle.errors import ErrorCode, MlctlError

T = TypeVar("T")


def described(kind: type[T], document: Mapping[str, Any]) -> T:
    """A value that only describes, without the fields that `kind` does not have here."""
    return kind(**{name: document[name] for name in document if name in _names(kind)})


def ordered(kind: type[T], document: Mapping[str, Any]) -> T:
    """A value that says what shall be done: INVALID_INPUT names a field that asks for more.

    To leave out a limit would be to break it. A field that was added asks for nothing where it
    is empty, and then it is left out.
    """
    for name in sorted(set(document) - _names(kind)):
        if document[name]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"this mlctl does not know {name!r}, which is asked for",
                "Use the mlctl that wrote it, or a newer one.",
            )
    return described(kind, document)


def _names(kind: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))
