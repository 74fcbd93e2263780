"""The option types that commands share, and one meaning for each option name."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from cli.main import cli
from cli.options import Duration, parse_duration
from docs.generate import every_command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("10m", 600.0), ("1h30m", 5400.0), ("7d", 604_800.0)],
)
def test_duration__with_units__is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "30 s", "-5s", "1h30", "10 minutes", "nan"])
def test_duration__without_a_unit_or_malformed__is_rejected(text: str) -> None:
    assert parse_duration(text) is None


def test_duration_option__outside_its_limits__names_the_limit() -> None:
    @click.command()
    @click.option("--wait", type=Duration("1s", "1m"), default="5s", show_default=True)
    def command(wait: float) -> None:
        click.echo(wait)

    run = CliRunner().invoke
    assert run(command, []).output == "5.0\n"
    assert run(command, ["--wait", "1m"]).output == "60.0\n"
    assert "the minimum is 1s" in run(command, ["--wait", "10ms"]).output
    assert "the maximum is 1m" in run(command, ["--wait", "1h"]).output
    assert "write it as 30s, 10m or 1h" in run(command, ["--wait", "30"]).output
    assert "[default: 5s]" in run(command, ["--help"]).output


def test_options__of_all_commands__are_explained() -> None:
    for name, command in every_command():
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts[0]}"


def test_options__with_one_name__have_one_type_across_commands() -> None:
    types: dict[str, set[str]] = {}
    for _name, command in every_command():
        options = [] if isinstance(command, click.Group) else command.params
        for option in options:
            if isinstance(option, click.Option):
                kind = "flag" if option.is_flag else option.type.name.removesuffix(" range")
                types.setdefault(option.opts[-1], set()).add(kind)
    paths = {"text", "file", "directory", "path"}
    mixed = {name: kinds for name, kinds in types.items() if len(kinds) > 1 and not kinds <= paths}
    assert mixed == {}


def test_usage_error__with_json__is_a_document() -> None:
    result = CliRunner().invoke(cli, ["serve", "digits", "--prot", "1", "--json"])
    assert (result.exit_code, result.stderr) == (2, "")
    assert '"code": "invalid_input"' in result.stdout
    assert "serve --help` shows the options." in result.stdout


def test_command__with_a_misspelt_name__suggests_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["optimise"])
    assert result.exit_code == 2
    assert "optimize" in result.stderr
