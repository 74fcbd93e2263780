"""An operating system that can be told to fail: a clock that steps, a disk that fills.

Real processes meet it: a small C library, made here with `cc`, stands before the C library's
own clock and writes. Without a compiler there is none, and what needs it is skipped.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_ANY = -1


@dataclass(frozen=True, slots=True)
class FaultyOs:
    """The controls, in `folder`; files below `disk` are those that its full disk refuses."""

    folder: Path
    disk: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with to be under these controls."""
        return {
            "LD_PRELOAD": str(self.folder / "faulty_os.so"),
            "FAULTY_OS_CONTROL": str(self.folder / "control"),
            "FAULTY_OS_DISK": f"{self.disk}/",
        }

    def step_clock(self, seconds: int) -> None:
        """Put the wall clock so far off the real one."""
        self._set(0, seconds)

    def leave_room(self, size: int | None) -> None:
        """Let `size` more bytes be written to the disk; None for any number."""
        self._set(8, _ANY if size is None else size)

    def _set(self, place: int, number: int) -> None:
        with (self.folder / "control").open("r+b") as control:
            control.seek(place)
            control.write(struct.pack("=q", number))


def make_faulty_os(folder: Path) -> FaultyOs | None:
    """Compile it into `folder`; None where that cannot be done."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    disk = folder / "disk"
    disk.mkdir(parents=True)
    library = folder / "faulty_os.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    (folder / "control").write_bytes(struct.pack("=qq", 0, _ANY))
    return FaultyOs(folder, disk)
