"""Reading .npz files: their forms, their damage, and the memory that it takes."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import RowLimits, load_data, read_rows
from mlctl.optimize.data.npz import NpzSource
from tests.support.eval_rows import Batches, signature
from tests.support.sources import save_rows

X = np.arange(480, dtype=np.float32).reshape(40, 4, 3)
LABELS = np.repeat(np.arange(4), 10)
SIGNATURE = signature(4, 3)
MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("chunk_bytes", [1, 500, 10 * MEGABYTE])
@pytest.mark.parametrize("form", ["plain", "compressed", "fortran"])
def test_npz__every_form__gives_the_same_rows(tmp_path: Path, form: str, chunk_bytes: int) -> None:
    path = tmp_path / "d.npz"
    if form == "compressed":
        np.savez_compressed(path, image=X, labels=LABELS)
    else:
        np.savez(path, image=np.asfortranarray(X) if form == "fortran" else X, labels=LABELS)
    found = read_rows(NpzSource(path, chunk_bytes), SIGNATURE, RowLimits())
    want = read_rows(Batches({"image": X, "labels": LABELS}, 40), SIGNATURE, RowLimits())
    assert found.sha256 == want.sha256
    np.testing.assert_array_equal(found.held_out.inputs["image"], want.held_out.inputs["image"])


@pytest.mark.parametrize("fortran", [False, True])
def test_npz__a_large_file__is_read_in_bounded_memory(tmp_path: Path, fortran: bool) -> None:
    rows = np.broadcast_to(np.arange(60_000, dtype=np.float32)[:, None], (60_000, 256))
    labels = np.arange(60_000) % 10
    np.savez(tmp_path / "d.npz", x=np.array(rows, order="F" if fortran else "C"), y=labels)
    size = (tmp_path / "d.npz").stat().st_size
    tracemalloc.start()
    try:
        source = NpzSource(tmp_path / "d.npz", MEGABYTE)
        data = read_rows(source, signature(256), RowLimits(100, 500))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 58 * MEGABYTE
    assert peak < 8 * MEGABYTE
    chosen = data.held_out.inputs["image"]
    np.testing.assert_array_equal(chosen[:, 0] % 10, data.held_out.labels)


def rejected(path: Path) -> str:
    with pytest.raises(MlctlError) as caught:
        load_data(path, SIGNATURE)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.hint
    return caught.value.message


def test_load_data__a_path_without_data__is_named(tmp_path: Path) -> None:
    assert "no file" in rejected(tmp_path / "none.npz")
    assert "a folder without Parquet files" in rejected(tmp_path)
    (tmp_path / "text.npz").write_text("hello")
    assert "text.npz is neither an .npz nor a Parquet file" in rejected(tmp_path / "text.npz")
    (tmp_path / "empty.npz").touch()
    assert "is neither" in rejected(tmp_path / "empty.npz")
    np.save(tmp_path / "one.npy", X)
    assert "a single array" in rejected(tmp_path / "one.npy")
    secret = tmp_path / "loop.npz"
    secret.symlink_to(secret)
    assert "loop.npz cannot be read: Too many levels" in rejected(secret)


@pytest.mark.parametrize("cut", [50, 1500])
def test_npz__cut_short__is_named(tmp_path: Path, cut: int) -> None:
    whole = save_rows(tmp_path / "whole.npz", {"x": X}).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-cut])
    assert "cut.npz cannot be read: it is damaged or cut short" in rejected(tmp_path / "cut.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_npz__a_changed_byte__is_found(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "d.npz", x=np.random.default_rng(0).random((40, 4, 3), np.float32))
    content = bytearray((tmp_path / "d.npz").read_bytes())
    content[800] ^= 1
    (tmp_path / "d.npz").write_bytes(content)
    assert "damaged or cut short" in rejected(tmp_path / "d.npz")


def member(content: bytes, name: str = "x.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (member(b"text", "word/document.xml"), "'word/document.xml' in the archive is not a numpy"),
        (member(b"text"), "damaged or cut short"),
        (member(npy(X)[:-4]), "damaged or cut short"),
        (member(npy(X) + b"\0"), "longer than its header says"),
        (b"PK\x05\x06" + bytes(18), "holds no arrays"),
        (member(npy(np.zeros(9, [("a", "f4")]))), "has no V2 datatype"),
    ],
)
def test_npz__another_archive__is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    assert reason in rejected(tmp_path / "d.npz")


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
def test_npz__named_fields__are_rejected(tmp_path: Path) -> None:
    (tmp_path / "d.npz").write_bytes(member(npy(np.zeros(9, [("値", "f4")]))))
    assert "has no V2 datatype" in rejected(tmp_path / "d.npz")


def test_npz__pickled_arrays__are_rejected(tmp_path: Path) -> None:
    path = save_rows(tmp_path / "objects.npz", {"x": np.array([{}, 1], dtype=object)})
    assert "array 'x' cannot be read: it holds pickled objects" in rejected(path)


def test_npz__an_empty_array__is_rejected(tmp_path: Path) -> None:
    path = save_rows(tmp_path / "d.npz", {"x": np.zeros((40, 0, 3), np.float32)})
    assert "does not fit the model" in rejected(path)
