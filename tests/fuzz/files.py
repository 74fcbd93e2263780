"""Targets that are read from files: an OCI layer, an ONNX graph with its data, golden rows."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from mlctl.bento.transfer import oci
from mlctl.bento.transfer.archive import Listing
from mlctl.bundle.manifest import FileEntry
from mlctl.core.errors import ErrorCode
from mlctl.services.model.golden import load_golden, save_golden
from mlctl.services.model.onnx_graph import read_graph
from tests.fuzz.target import Feed, FindingError, Target
from tests.support.manifests import ZERO_SHA

OUTSIDE = "outside"
_GZIP = b"\x1f\x8b"
NAMES = st.sampled_from(
    [
        "a.txt", "deep/b.bin", "../outside/x", "/tmp/x", "deep/../../outside/x", "a.txt/x",
        "..\\outside\\x", "a\0b", "", ".", "model.data", "%2e%2e/outside/x", "a.txt;x", "deep",
        "link", "link/x", "\ud7ff", "x" * 300,
    ]
)  # fmt: skip


@contextmanager
def _guarded(what: str) -> Iterator[Path]:
    """A folder to work in; a finding if anything beside it changed."""
    with tempfile.TemporaryDirectory(prefix=f"mlctl-fuzz-{what}-") as name:
        root = Path(name)
        (root / OUTSIDE).mkdir()
        (root / OUTSIDE / "secret").write_bytes(b"secret")
        yield root


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _check_outside(root: Path) -> None:
    found = {path.name: path.read_bytes() for path in (root / OUTSIDE).iterdir()}
    if found != {"secret": b"secret"} or _names(root) - {OUTSIDE, "in", "work"}:
        raise FindingError("a file was written outside of the folder")


Member = tuple[str, bytes, bytes, str]
_LISTING = Listing(
    name="tiny",
    version="1",
    digest=ZERO_SHA,
    content_digest=None,
    files=(
        FileEntry(path="a.txt", size=5, sha256=ZERO_SHA),
        FileEntry(path="deep/b.bin", size=0, sha256=ZERO_SHA),
    ),
)


@contextmanager
def _layer() -> Iterator[Feed]:
    with _guarded("layer") as root:

        def feed(data: bytes) -> str:
            # The packer's own format is a small part of it: what is inside comes as it is.
            layer = data if data.startswith(_GZIP) else gzip.compress(data, 1, mtime=0)
            (root / "in").write_bytes(layer)
            shutil.rmtree(root / "work", ignore_errors=True)
            (root / "work").mkdir()
            try:
                oci._unpack(root / "in", _LISTING, root / "work")
            finally:
                _check_outside(root)
            for path in (root / "work").rglob("*"):
                if path.is_symlink():
                    raise FindingError("a link was unpacked")
            return "unpacked"

        yield feed


def packed(members: list[Member]) -> bytes:
    """A tar of members: name, kind, content, what they link to."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


_MEMBERS = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(
            [tarfile.REGTYPE] * 4
            + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
        ),
        st.sampled_from([b"hello", b"", b"x" * 600]),
        NAMES,
    ),
    max_size=4,
)


def _bare(members: list[Member]) -> list[Member]:
    """Only files have content."""
    return [
        (name, kind, content if kind == tarfile.REGTYPE else b"", link)
        for name, kind, content, link in members
    ]


@contextmanager
def _graph() -> Iterator[Feed]:
    with _guarded("graph") as root:
        folder = root / "work"
        folder.mkdir()
        (folder / "model.data").write_bytes(bytes(64))
        (folder / "link").symlink_to(root / OUTSIDE / "secret")

        def feed(data: bytes) -> str:
            model = folder / "model.onnx"
            model.write_bytes(data)
            for path in read_graph(model).files:
                if path.resolve().parent != folder.resolve():
                    raise FindingError("a graph has a file outside of its folder")
            return "read"

        yield feed


def graph_with(location: str, offset: str, length: str) -> bytes:
    """A graph with one tensor in a file of its own, and one in a subgraph's constant."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "i", [], [])
    outer = helper.make_graph(
        [helper.make_node("If", ["q"], ["y"], then_branch=inner, else_branch=inner)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [],
        [tensor],
    )
    made: bytes = helper.make_model(outer).SerializeToString()
    return made


_GRAPHS = st.builds(
    graph_with,
    NAMES,
    st.sampled_from(["0", "-1", "", "9" * 30, "x"]),
    st.sampled_from(["16", "-1", "9" * 30, "x"]),
)


@contextmanager
def _golden() -> Iterator[Feed]:
    with _guarded("golden") as root:

        def feed(data: bytes) -> str:
            (root / "in").write_bytes(data)
            for side in load_golden(root / "in"):
                for array in side.values():
                    if array.dtype == object and not all(isinstance(v, bytes) for v in array.flat):
                        raise FindingError("an object came out of the golden rows")
            return "loaded"

        yield feed


def golden_rows() -> bytes:
    """A valid file of golden rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.npz"
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        save_golden(path, {"x": rows, "s": np.array([b"a", b"bc"], dtype=object)}, {"y": rows})
        return path.read_bytes()


def golden_of(name: str, header: bytes, content: bytes, deflated: bool) -> bytes:
    """An archive of one array whose header is any text."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if deflated else 0) as archive:
        prefix = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr(zipfile.ZipInfo(name), prefix + header + content)
    return out.getvalue()


_HEADERS = st.builds(
    "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n".format,
    st.sampled_from(["'<f4'", "'|O'", "'|S4'", "'<U9999999999'", "[('a', '|O')]", "3", "'|V0'"]),
    st.sampled_from(["False", "True", "0"]),
    st.sampled_from(["(2,)", "(9999999999999,)", "(-1,)", "()", "(1, 2, 'x')", "[1]", "(0,)"]),
).map(str.encode)
_GOLDENS = st.builds(
    golden_of,
    st.sampled_from(["in.x.npy", "out.y.npy", "../x.npy", "in.x"]),
    _HEADERS,
    st.binary(max_size=16),
    st.booleans(),
)


def graph_seed() -> bytes:
    """A valid graph whose data are in model.data."""
    found = graph_with("model.data", "0", "16")
    onnx.ModelProto.FromString(found)
    return found


_NAMES_OF_A_LIST = frozenset(
    {ErrorCode.FILE_UNLISTED, ErrorCode.FILE_ALTERED, ErrorCode.FILE_MISSING, ErrorCode.PATH_UNSAFE}
)
FILES = (
    Target("layer", _layer, _MEMBERS.map(_bare).map(packed), _NAMES_OF_A_LIST),
    Target(
        "onnx",
        _graph,
        _GRAPHS,
        frozenset({ErrorCode.UNSUPPORTED_MODEL, ErrorCode.FILE_MISSING, ErrorCode.PATH_UNSAFE}),
    ),
    Target("golden", _golden, _GOLDENS, frozenset({ErrorCode.FILE_ALTERED})),
)
