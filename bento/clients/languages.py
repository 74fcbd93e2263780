"""The languages that clients are written in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from bento.clients.proto import ProtoGenerator
from bento.clients.python import PythonGenerator
from bento.clients.typescript import TypescriptGenerator
from services.online.openapi.document import document, to_text
from services.online.openapi.model import ApiModel


class Generator(Protocol):
    """Writes a client in one language.

    It is a pure function of the model, so the same model always gives the same files.
    """

    def files(self, model: ApiModel) -> Mapping[str, str | bytes]:
        """The files by their path relative to the output folder, parts joined by `/`."""
        ...


class OpenApiGenerator:
    """Writes `openapi.json`."""

    def files(self, model: ApiModel) -> Mapping[str, str | bytes]:
        return {"openapi.json": to_text(document([model]))}


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "python": PythonGenerator(),
        "typescript": TypescriptGenerator(),
        "proto": ProtoGenerator(),
        "openapi": OpenApiGenerator(),
    }
)
