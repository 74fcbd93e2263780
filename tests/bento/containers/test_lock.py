"""Lock files: what is written is read back, and what an image would lack is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bento.containers import locking
from bento.containers.known_locks import KnownLocks
from bento.containers.lock import Lock, Package, Platform, lock_of_report, parse_lock
from bento.containers.resolve import resolve
from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from bundle.files import sha256_file
from services.runtime.bento_store import BentoInfo

HASH = "0123456789abcdef" * 4
NAMES = st.from_regex(r"[a-z0-9](?:-?[a-z0-9]){0,20}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}(rc[0-9])?", fullmatch=True)
HASHES = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=3, unique=True)
PATH = Path("requirements.lock")


@given(st.dictionaries(NAMES, st.tuples(VERSIONS, HASHES), min_size=1, max_size=8))
def test_what_is_written_is_read_back(given: dict[str, tuple[str, list[bytes]]]) -> None:
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
def test_anything_but_pins_with_hashes_is_refused(text: str) -> None:
    with pytest.raises(MlctlError) as caught:
        parse_lock(text, PATH)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def item(name: str, *needs: str, sha256: str | None = HASH) -> Mapping[str, object]:
    hashes = {} if sha256 is None else {"sha256": sha256}
    metadata = {"name": name, "version": "1.0", "requires_dist": list(needs)}
    return {"metadata": metadata, "download_info": {"archive_info": {"hashes": hashes}}}


def test_extras_and_markers_are_those_of_the_image() -> None:
    report = [
        item("Server_App", "runtime; extra == 'gpu'", "x86; platform_machine == 'x86_64'"),
        item("runtime", "server-app"),
        item("x86"),
    ]
    lock = lock_of_report(report, ["server-app[gpu]==1.0"], Platform.AMD64)
    assert [(each.name, each.needs) for each in lock.packages] == [
        ("runtime", ("server-app",)),
        ("server-app", ("runtime", "x86")),
        ("x86", ()),
    ]
    without = lock_of_report(report, ["server-app==1.0"], Platform.ARM64)
    assert [each.name for each in without.packages] == ["server-app"]


def test_a_package_that_only_the_image_needs_is_noticed() -> None:
    report = [item("app", "arm-only; platform_machine == 'aarch64'")]
    with pytest.raises(MlctlError, match="on linux/arm64 the Bento also needs arm-only"):
        lock_of_report(report, ["app==1.0"], Platform.ARM64)


def test_an_index_without_hashes_is_refused() -> None:
    with pytest.raises(MlctlError, match=r"no sha256 of app 1\.0"):
        lock_of_report([item("app", sha256=None)], ["app==1.0"], Platform.AMD64)


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
    """A folder that is all that pip knows of."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_the_wheels_of_the_other_machine_are_locked(wheels: Path) -> None:
    wheel(wheels, "apart", "below", tag="cp311-cp311-manylinux_2_17_x86_64")
    arm = wheel(wheels, "apart", "below", tag="cp311-cp311-manylinux_2_28_aarch64")
    below = wheel(wheels, "below")
    lock = resolve(["apart==1.0"], Platform.ARM64)
    assert lock.packages == (
        Package("apart", "1.0", (sha256_file(arm),), ("below",), lock.packages[0].licence),
        Package("below", "1.0", (sha256_file(below),), (), lock.packages[1].licence),
    )
    (wheels / "requirements.lock").write_text(lock.text())
    with pytest.raises(MlctlError, match=r"no wheel of apart==2\.0 for linux/arm64"):
        resolve(["apart==2.0"], Platform.ARM64)


def test_an_index_that_cannot_be_reached_is_told_with_the_way_out(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wheels.is_dir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(MlctlError, match="could not be reached") as caught:
        resolve(["numpy==2.0"], Platform.AMD64)
    assert caught.value.code is ErrorCode.PACKAGE_INDEX_UNAVAILABLE
    assert "--lock" in caught.value.hint


def test_what_the_index_said_is_known_for_a_day_unless_something_else_is_asked(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(5e8)
    asked_index: list[str] = []

    def get(name: str) -> Lock:
        def ask() -> Lock:
            asked_index.append(name)
            return Lock((Package(name, "1.0", ("a" * 64, "b" * 64), ("below",), "MIT"),))

        return KnownLocks(wheels, clock).get([[name], ["base==1"]], ask)

    first = get("app")
    clock.advance(80_000)
    assert get("app") == first
    assert asked_index == ["app"]
    get("below")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels}/")
    get("app")
    clock.advance(80_000)
    get("app")
    assert asked_index == ["app", "below", "app"]
    clock.advance(10_000)
    get("app")
    assert len(asked_index) == 4


def test_what_a_bento_wants_is_not_taken_for_what_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    bento = BentoInfo("tiny:1", tmp_path, {})

    def lock_with(wanted: list[str], here: list[str]) -> Lock:
        packages = [Package(line.partition("==")[0], "1", ("a" * 64,)) for line in wanted]
        monkeypatch.setattr(locking, "requirements_of", lambda _: wanted)
        monkeypatch.setattr(locking, "proved", lambda _: here)
        monkeypatch.setattr(locking, "resolve", lambda *_: Lock(tuple(packages)))
        return locking.lock_for(bento, Platform.AMD64, None)

    assert lock_with(["app"], ["base==1"]).versions().keys() == {"app"}
    assert lock_with(["app", "base==1"], []).versions().keys() == {"app", "base"}


def test_a_lock_that_is_not_as_it_was_written_is_asked_for_again(wheels: Path) -> None:
    known = KnownLocks(wheels, ManualClock(5e8))
    lock = Lock((Package("app", "1.0", ("a" * 64,)),))
    assert known.get(["app"], lambda: lock) == lock
    (path,) = wheels.glob("*.json")
    whole = path.read_text()
    for spoiled in (whole.replace("aaa", "bbb"), whole[:-1], "", "no digest"):
        path.write_text(spoiled)
        assert known.get(["app"], lambda: lock) == lock
        assert path.read_text() == whole
