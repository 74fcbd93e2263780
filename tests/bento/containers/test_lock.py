"""Lock files: written and read back, and resolved from wheels in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from tarfile import TarFile
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from mlctl.bento.containers.lock import Lock, Package, Platform, parse_lock
from mlctl.bento.containers.resolve import needs_of, resolve
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file
from mlctl.core.packages import installed_version

pytestmark = pytest.mark.slow

HASH = "0123456789abcdef" * 4
NAMES = st.from_regex(r"[a-z0-9](?:-?[a-z0-9]){0,20}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}(rc[0-9])?", fullmatch=True)
HASHES = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=3, unique=True)
PATH = Path("requirements.lock")


@given(st.dictionaries(NAMES, st.tuples(VERSIONS, HASHES), min_size=1, max_size=8))
def test_lock__written__is_read_back(given: dict[str, tuple[str, list[bytes]]]) -> None:
    packages = [
        Package(name, version, tuple(sorted(one.hex() for one in hashes)))
        for name, (version, hashes) in sorted(given.items())
    ]
    lock = Lock(tuple(packages))
    assert parse_lock(lock.text(), PATH) == lock


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "numpy\n",
        "numpy==2.0\n",
        f"numpy>=2.0 --hash=sha256:{HASH}\n",
        f"numpy==2.0 --hash=md5:{HASH}\n",
        f"numpy==2.0 --hash=sha256:{HASH[:-1]}\n",
        f"--extra-index-url=http://x\nnumpy==2.0 --hash=sha256:{HASH}\n",
        f"numpy @ http://x/numpy.whl --hash=sha256:{HASH}\n",
        f"numpy==2.0 --hash=sha256:{HASH}\nNumPy==2.0 --hash=sha256:{HASH}\n",
    ],
)
def test_parse_lock__anything_but_pins_with_hashes__is_rejected(text: str) -> None:
    with pytest.raises(MlctlError) as caught:
        parse_lock(text, PATH)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_needs_of__extras_and_markers__are_those_of_the_image() -> None:
    lines = {
        "server-app": [
            Requirement("runtime; extra == 'gpu'"),
            Requirement("x86; platform_machine == 'x86_64'"),
        ],
        "runtime": [Requirement("Server_App")],
    }
    assert needs_of(["server-app[gpu]==1.0"], lines, Platform.AMD64) == {
        "runtime": {"server-app"}, "server-app": {"runtime", "x86"}, "x86": set(),
    }  # fmt: skip
    assert needs_of(["server-app==1.0"], lines, Platform.ARM64) == {"server-app": set()}


def wheel(folder: Path, name: str, *needs: str, tag: str = "py3-none-any") -> Path:
    path = folder / f"{name}-1.0-{tag}.whl"
    info = f"{name}-1.0.dist-info"
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", "License-Expression: MIT"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that the resolver looks into."""
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_resolve__another_platform__locks_its_wheels(wheels: Path) -> None:
    wheel(wheels, "apart", "below", tag="cp311-cp311-manylinux_2_17_x86_64")
    arm = wheel(wheels, "apart", "below", tag="cp311-cp311-manylinux_2_28_aarch64")
    below = wheel(wheels, "below")
    lock = resolve(["apart==1.0"], Platform.ARM64)
    assert lock.packages == (
        Package("apart", "1.0", (sha256_file(arm),)),
        Package("below", "1.0", (sha256_file(below),)),
    )
    assert parse_lock(lock.text(), PATH) == lock


def test_resolve__marker_of_the_image__is_not_that_of_this_machine(wheels: Path) -> None:
    wheel(wheels, "app", "arm-only; platform_machine == 'aarch64'")
    wheel(wheels, "arm_only")
    assert resolve(["app==1.0"], Platform.ARM64).versions().keys() == {"app", "arm-only"}
    assert resolve(["app==1.0"], Platform.AMD64).versions().keys() == {"app"}


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [("apart==2.0", "apart==2.0"), ("missing==1.0", "missing"), ("source==1.0", "source")],
)
def test_resolve__no_wheel__names_the_package(wheels: Path, requirement: str, reason: str) -> None:
    wheel(wheels, "apart", tag="cp311-cp311-manylinux_2_28_aarch64")
    with TarFile.open(wheels / "source-1.0.tar.gz", "w:gz"):
        pass
    with pytest.raises(MlctlError, match=f"for linux/arm64 and Python .*{reason}") as caught:
        resolve([requirement], Platform.ARM64)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_resolve__installed_here__keeps_that_version(wheels: Path) -> None:
    wheel(wheels, "app", "click")
    wheel(wheels, "click")  # 1.0, which was not tested with mlctl
    with pytest.raises(MlctlError, match=rf"click=={installed_version('click')}"):
        resolve(["app==1.0"], Platform.AMD64)


def test_resolve__pips_settings__are_those_of_uv(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (wheels / name).mkdir()
        wheel(wheels / name, name)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels / 'one'} {wheels / 'two'}")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "1.5")
    assert resolve(["one==1.0", "two==1.0"], Platform.AMD64).versions().keys() == {"one", "two"}
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "soon")
    with pytest.raises(MlctlError, match=r"exit code 2: .*UV_HTTP_TIMEOUT") as caught:
        resolve(["one==1.0"], Platform.AMD64)
    assert caught.value.code is ErrorCode.INTERNAL


def test_resolve__invalid_index__shows_no_password(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wheels.is_dir()
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:port/simple")
    with pytest.raises(MlctlError, match="invalid port") as caught:
        resolve(["numpy==2.0"], Platform.AMD64)
    assert "secret" not in str(caught.value)


def test_resolve__index_not_reachable__hint_names_the_lock_file(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wheels.is_dir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(MlctlError, match="did not answer") as caught:
        resolve(["numpy==2.0"], Platform.AMD64)
    assert caught.value.code is ErrorCode.PACKAGE_INDEX_UNAVAILABLE
    assert "--lock" in caught.value.hint
    assert "secret" not in str(caught.value)
