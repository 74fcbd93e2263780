"""What holds for every bundle: paths stay inside, any single byte changed is noticed."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bundle.manifest import parse_manifest
from mlctl.bundle.verify import seal, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import resolve_inside
from tests.support.manifests import small_manifest


@given(st.text(max_size=40))
def test_resolve_inside__any_name__is_inside_or_rejected(name: str) -> None:
    root = Path(tempfile.gettempdir()).resolve() / "mlctl-no-such-root"
    try:
        path = resolve_inside(root, name)
    except MlctlError as error:
        assert error.code is ErrorCode.PATH_UNSAFE
        return
    assert path.is_relative_to(root)
    assert ".." not in path.parts


@given(st.binary(max_size=300))
def test_parse_manifest__any_bytes__is_a_manifest_or_a_named_error(content: bytes) -> None:
    with pytest.raises(MlctlError) as caught:
        parse_manifest(content)
    assert caught.value.code in (ErrorCode.MANIFEST_INVALID, ErrorCode.MANIFEST_VERSION_UNKNOWN)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_verify__any_byte_changed__is_rejected(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model.onnx").write_bytes(content)
        seal(root, small_manifest())
        changed = bytearray(content)
        changed[at] ^= flip
        (root / "model.onnx").write_bytes(changed)
        with pytest.raises(MlctlError) as caught:
            verify(root)
    assert caught.value.code is ErrorCode.FILE_ALTERED
