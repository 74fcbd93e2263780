"""Locks that the package index gave within the last day: to ask it again takes a minute.

A lock is known by all that was asked: what is wanted, the versions that are installed here, the
platform, and pip's own settings. A file that is not as it was written counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bento.containers.lock import Lock, Package
from bundle.clock import Clock
from bundle.files import write_atomic

_FORM = 1  # of the files
# An index may have other wheels tomorrow.
_SECONDS = 86_400.0
_SETTINGS_TIMEOUT = 60.0


class KnownLocks:
    """The locks in `folder`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def get(self, asked: object, resolve: Callable[[], Lock]) -> Lock:
        """The lock that answers `asked`, of JSON, from `resolve` if it is not known any more."""
        text = json.dumps([_FORM, asked, _settings()])
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        lock = self._read(path)
        if lock is None:
            lock = resolve()
            self._write(path, lock)
        return lock

    def _read(self, path: Path) -> Lock | None:
        try:
            digest, _, body = path.read_text().partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            return None
        document = json.loads(body)
        if not 0 <= self._clock.wall() - document["at"] < _SECONDS:
            return None
        packages = [
            Package(
                each["name"],
                each["version"],
                tuple(each["sha256"]),
                tuple(each["needs"]),
                each["licence"],
            )
            for each in document["packages"]
        ]
        return Lock(tuple(packages))

    def _write(self, path: Path, lock: Lock) -> None:
        packages = [asdict(each) for each in lock.packages]
        body = json.dumps({"at": self._clock.wall(), "packages": packages})
        digest = hashlib.sha256(body.encode()).hexdigest()
        write_atomic(path, f"{digest}\n{body}".encode(), mode=0o600)


def _settings() -> list[str]:
    """What pip is told by its files and its environment, such as where it looks."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_SETTINGS_TIMEOUT
    )  # should it fail, pip is to say why when it is asked for packages
    given = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_")]
    return [done.stdout, *sorted(given)]
