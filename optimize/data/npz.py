"""Rows of an .npz file. Arrays are unpacked to disk and mapped, so memory stays bounded."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from mlctl.core.quiet import first_line
from mlctl.optimize.data.rows import Tensors
from mlctl.optimize.data.source import CHUNK_BYTES, chunk_rows, invalid

_SUFFIX = ".npy"


@dataclass(frozen=True, slots=True)
class NpzSource:
    """The .npz file at `path`, plain or compressed; pickled arrays are rejected."""

    path: Path
    chunk_bytes: int = CHUNK_BYTES

    @property
    def name(self) -> str:
        return self.path.name

    def chunks(self) -> Iterator[Tensors]:
        """Yield as many rows of all arrays at a time as fit into `chunk_bytes`."""
        with (
            _translate_errors(self.name),
            zipfile.ZipFile(self.path) as archive,
            tempfile.TemporaryDirectory() as folder,
        ):
            arrays = {
                info.filename.removesuffix(_SUFFIX): _mapped(
                    archive, info, Path(folder, str(number))
                )
                for number, info in enumerate(archive.infolist())
            }
            if not arrays:
                raise invalid(f"{self.name} holds no arrays")
            rows = max(len(array) if array.ndim else 1 for array in arrays.values())
            row_bytes = sum(array.nbytes for array in arrays.values()) // max(rows, 1)
            step = chunk_rows(self.chunk_bytes, row_bytes)
            for start in range(0, rows, step):
                yield {
                    name: np.array(array[start : start + step] if array.ndim else array)
                    for name, array in arrays.items()
                }


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Unpack one array, which checks its CRC, and map it into memory."""
    if not info.filename.endswith(_SUFFIX):
        raise invalid(f"{info.filename!r} in the archive is not a numpy array")
    with archive.open(info) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    try:
        array = npy.open_memmap(path, mode="r")
    except ValueError as error:
        if "Python objects" not in str(error):
            raise
        name = info.filename.removesuffix(_SUFFIX)
        raise invalid(f"array {name!r} cannot be read: it holds pickled objects") from error
    if array.offset + array.nbytes != path.stat().st_size:
        raise ValueError(f"{info.filename} is longer than its header says")
    return np.asarray(array)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Turn the errors of all layers below into INVALID_INPUT that names the file."""
    try:
        yield
    except OSError as error:
        raise invalid(f"{name} cannot be read: {error.strerror or first_line(error)}") from error
    except RuntimeError as error:
        raise invalid(f"{name} cannot be read: {first_line(error)}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = f"it is damaged or cut short ({first_line(error)})"
        raise invalid(f"{name} cannot be read: {reason}") from error
