import stat
from pathlib import Path

import pytest
from platformdirs import user_data_path

from mlctl.core.home import HOME_VARIABLE, mlctl_home, state_dir


def test_home__variable_is_set__is_absolute_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(HOME_VARIABLE, "state")
    assert mlctl_home() == tmp_path / "state"
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_home__variable_is_not_set__is_the_platforms_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert mlctl_home() == user_data_path("mlctl") == tmp_path / "mlctl"


def test_state_dir__does_not_exist__is_made_under_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert state_dir("a", "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
