"""The languages that clients are written in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.ship.clients.base import Generator
from services.ship.clients.openapi import OpenApiGenerator
from services.ship.clients.proto import ProtoGenerator
from services.ship.clients.python import PythonGenerator
from services.ship.clients.typescript import TypescriptGenerator

GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "python": PythonGenerator(),
        "typescript": TypescriptGenerator(),
        "proto": ProtoGenerator(),
        "openapi": OpenApiGenerator(),
    }
)
