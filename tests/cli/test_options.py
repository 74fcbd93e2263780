"""The option types that commands share, and one meaning for each option name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from docs.generate import every_command
from mlctl.cli.main import cli
from mlctl.cli.options import Duration, option, parse_duration, takes


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
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts[0]}"


def test_options__with_one_name__have_one_type_across_commands() -> None:
    types: dict[str, set[str]] = {}
    for _name, command in every_command():
        options = [] if isinstance(command, click.Group) else command.params
        for parameter in options:
            if isinstance(parameter, click.Option):
                kind = "flag" if parameter.is_flag else parameter.type.name.removesuffix(" range")
                types.setdefault(parameter.opts[-1], set()).add(kind)
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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Options of each kind of field."""

    count: int = option(1, click.IntRange(1, 9), help="How many.")
    names: tuple[str, ...] = option(name="--name", help="Repeatable.")
    wait: float = option("30s", Duration(), help="How long.")
    dry_run: bool = option(help="A flag.")
    file: Path | None = option(name="-f --file", help="A path.")
    kind: str = option(required=True, help="Required.")


@click.command()
@click.argument("target")
@takes(shape=Shape)
def shaped(target: str, shape: Shape) -> None:
    click.echo(f"{target} {shape}")


def test_takes__options_of_each_kind__are_one_object() -> None:
    given = ["--kind", "a", "--name", "x", "--name", "y", "--wait", "2m", "--dry-run", "-f", "p"]
    done = CliRunner().invoke(shaped, ["t", *given])
    expected = Shape(count=1, names=("x", "y"), wait=120.0, dry_run=True, file=Path("p"), kind="a")
    assert done.output == f"t {expected}\n"
    done = CliRunner().invoke(shaped, ["t", "--kind", "a"])
    assert (
        f"{Shape(count=1, names=(), wait=30.0, dry_run=False, file=None, kind='a')}" in done.output
    )


def test_takes__help__lists_required_options_first() -> None:
    found = CliRunner().invoke(shaped, ["--help"]).output
    names = [
        line.split()[0] for line in found.partition("Options:")[2].splitlines() if "--" in line
    ]
    assert names == ["--kind", "--count", "--name", "--wait", "--dry-run", "-f,", "--help"]
    assert CliRunner().invoke(shaped, ["t"]).exit_code == 2
