"""The languages that clients are written in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from services.http.openapi import document, to_text
from services.ship.clients.proto import ProtoGenerator
from services.ship.clients.python import PythonGenerator
from services.ship.clients.typescript import TypescriptGenerator
from services.typed.model import Model


class Generator(Protocol):
    """Writes a client in one language.

    It is a pure function of the model, so the same model always gives the same files.
    """

    def files(self, model: Model) -> Mapping[str, str | bytes]:
        """The files by their path relative to the output folder, parts joined by `/`."""
        ...


class OpenApiGenerator:
    """Writes `openapi.json`."""

    def files(self, model: Model) -> Mapping[str, str | bytes]:
        return {"openapi.json": to_text(document([model]))}


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "python": PythonGenerator(),
        "typescript": TypescriptGenerator(),
        "proto": ProtoGenerator(),
        "openapi": OpenApiGenerator(),
    }
)
