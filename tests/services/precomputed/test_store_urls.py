"""Where precomputed answers are stored: which URLs are valid, and what errors show of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.settings import load_settings
from mlctl.services.precomputed.settings import read_store_location
from mlctl.services.precomputed.store_urls import redact_location


@pytest.mark.parametrize("load", [read_store_location, load_settings])
@pytest.mark.parametrize(
    "url", ["mysql://me:geheim@h/0", "redis://me:ge/heim@h:6379/0", "redis://me:ge?heim@h/0"]
)
def test_store_url__invalid__no_error_or_traceback_shows_its_password(
    load: Callable[[], object], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", url)
    with pytest.raises(MlctlError, match="MLCTL_PRECOMPUTED_STORE") as caught:
        load()
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "heim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url", ["redis://me:geheim@127.0.0.1:1/0", "redis://me:ge?heim@127.0.0.1:1/0"]
)
@pytest.mark.parametrize("command", [["list"], ["show", "scores"], ["flip", "scores", "1"]])
def test_precomputed_command__store_is_away__does_not_show_its_password(
    command: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", url)
    done = CliRunner().invoke(cli, ["precomputed", *command])
    assert done.exit_code in {2, 12}
    assert "heim" not in done.output


def test_shown_place__url__keeps_only_scheme_host_and_path() -> None:
    assert redact_location("rediss://me:geheim@h:6380/1?password=x") == "rediss://h:6380/1"
    assert redact_location("/srv/answers") == "/srv/answers"
