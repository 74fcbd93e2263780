"""An operating system that fails on request: its wall clock steps, its disk is full.

Real processes run on it: a small library, compiled here with `cc`, replaces the clock and the
writes of the C library.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class FaultyOs:
    """The controls, in `folder`; the disk that can be full is the folder `disk`."""

    folder: Path
    disk: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that put a new process under these controls."""
        return {
            "LD_PRELOAD": str(self.folder / "faulty_os.so"),
            "FAULTY_OS_CONTROL": str(self.folder / "control"),
            "FAULTY_OS_DISK": f"{self.disk}/",
        }

    def step_clock(self, seconds: int) -> None:
        """Set the wall clock's distance from the real one."""
        self._set(0, seconds)

    def leave_room(self, size: int | None) -> None:
        """Accept `size` more bytes on the disk; None for any number."""
        self._set(8, _UNLIMITED if size is None else size)

    def _set(self, offset: int, number: int) -> None:
        with (self.folder / "control").open("r+b") as control:
            control.seek(offset)
            control.write(struct.pack("=q", number))


def make_faulty_os(folder: Path) -> FaultyOs | None:
    """Compile the library into `folder`; return None without Linux and a compiler."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    disk = folder / "disk"
    disk.mkdir(parents=True)
    library = folder / "faulty_os.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    (folder / "control").write_bytes(struct.pack("=qq", 0, _UNLIMITED))
    return FaultyOs(folder, disk)
