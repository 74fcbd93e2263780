from pathlib import Path

import pytest

from mlctl.bento.packaging import BuiltBento
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import bento_home
from mlctl.services.layout.bento_store import find_bento, list_bentos


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def put(home: Path, name: str, version: str, yaml: str = "labels: {a: b}") -> None:
    folder = home / "bentos" / name / version
    folder.mkdir(parents=True)
    (folder / "bento.yaml").write_text(yaml)
    (folder.parent / "latest").write_text(version)


def test_bento_home__variable_or_state_folder__decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    monkeypatch.delenv("BENTOML_HOME", raising=False)
    assert bento_home() == tmp_path / "bentoml"
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "own"))
    assert bento_home() == tmp_path / "own"


def test_find_bento__name_only__is_the_newest(home: Path) -> None:
    put(home, "digits", "aaa")
    put(home, "digits", "bbb")
    for tag in ("digits", "digits:latest", "digits:bbb"):
        assert find_bento(tag).tag == "digits:bbb"
    found = find_bento("digits:aaa")
    assert found.path == home / "bentos" / "digits" / "aaa"
    assert found.labels == {"a": "b"}
    assert list_bentos() == ["digits:aaa", "digits:bbb"]


def test_find_bento__start_of_a_version__is_enough_if_unique(home: Path) -> None:
    for name, version in [
        ("digits", "3f2a61c0b7de"),
        ("digits", "3f2a61c0b7de-gpu"),
        ("digits", "3f2b00000000"),
        ("digits", "77b100000000-gpu"),
        ("digits-wide", "3f2a99999999"),
    ]:
        put(home, name, version)
    assert find_bento("digits:3f2a").tag == "digits:3f2a61c0b7de"
    assert find_bento("digits:3f2a-gpu").tag == "digits:3f2a61c0b7de-gpu"
    # Too short, another flavour, or a whole version that is gone: none is taken for another.
    for tag in ("digits:3f2", "digits:77b1", "digits:77b100000000", "digits:3f2a-trt"):
        with pytest.raises(MlctlError, match="no Bento") as caught:
            find_bento(tag)
        assert caught.value.code is ErrorCode.BENTO_NOT_FOUND


def test_find_bento__ambiguous_start__lists_the_versions(home: Path) -> None:
    put(home, "digits", "3f2a61c0b7de")
    put(home, "digits", "3f2a61c0ffff")
    with pytest.raises(MlctlError, match=r"3f2a61c0b7de, 3f2a61c0ffff") as caught:
        find_bento("digits:3f2a")
    assert caught.value.code is ErrorCode.BENTO_NOT_FOUND
    assert find_bento("digits:3f2a61c0f").tag == "digits:3f2a61c0ffff"


@pytest.mark.parametrize(
    ("tag", "near"),
    [
        ("digits:zzz", "digits:aaa"),
        ("digit", "digits:aaa"),
        ("q", "no tag in the store is similar"),
    ],
)
def test_find_bento__missing__suggests_similar_ones(home: Path, tag: str, near: str) -> None:
    put(home, "digits", "aaa")
    with pytest.raises(MlctlError, match=near) as caught:
        find_bento(tag)
    assert caught.value.code is ErrorCode.BENTO_NOT_FOUND


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("tag", ["../etc", "a:../b", "a:b:c", "", "A", "a:"])
def test_find_bento__invalid_tag__is_rejected(tag: str) -> None:
    with pytest.raises(MlctlError) as caught:
        find_bento(tag)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_find_bento__damaged_bento__is_reported(home: Path) -> None:
    put(home, "digits", "aaa", yaml="[")
    with pytest.raises(MlctlError, match="damaged"):
        find_bento("digits")


@pytest.mark.slow
def test_find_bento__built_by_bentoml__is_found(
    built: BuiltBento, store_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    found = find_bento(built.tag.partition(":")[0])
    assert found.tag == built.tag
    assert found.path == built.path
    assert found.labels["mlctl.digest"] == built.digest
