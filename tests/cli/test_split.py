"""`mlctl split`: its arguments."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("split", "shop"), "give the shares of two Bentos"),
        (("split", "shop", "a"), "write a share as BENTO=PERCENT"),
        (("split", "shop", "a=1", "--end"), "--end takes no shares"),
        (("split", "shop", "a=1", "--winner", "a"), "--winner needs --end"),
    ],
)
def test_split__contradictory_options__are_rejected(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, words in result.output) == (2, True)
