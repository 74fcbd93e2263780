from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from mlctl.bento.transfer import oci
from mlctl.core.errors import ErrorCode, MlctlError
from tests.fuzz.files import _LISTING


def test_layer__decompresses_to_far_more__is_rejected(tmp_path: Path) -> None:
    """Found beside the fuzzing: a header of 400 MiB packs to 2, and was read into memory."""
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, 8 << 20
    with gzip.open(tmp_path / "layer", "wb", 1) as packed:
        packed.write(head.tobuf(format=tarfile.USTAR_FORMAT) + bytes(head.size))
    with pytest.raises(MlctlError, match="larger than the files") as caught:
        oci._unpack(tmp_path / "layer", _LISTING, tmp_path / "target")
    assert caught.value.code is ErrorCode.FILE_ALTERED
