"""The languages that clients are written in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.ship.clients.base import Generator
from services.ship.clients.openapi import OpenApiGenerator
from services.ship.clients.python import PythonGenerator

GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"python": PythonGenerator(), "openapi": OpenApiGenerator()}
)
