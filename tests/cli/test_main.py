import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from docs.generate import commands_markdown, every_command
from mlctl import __version__
from mlctl.cli.main import COMMANDS, SECTIONS, cli
from tests.support.command_line import Mlctl

ROOT = Path(__file__).parents[2]


def test_help__main_command__lists_commands_in_the_order_of_the_chain() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    sections = result.output.partition(f"{next(iter(SECTIONS))}:")[2].splitlines()
    listed = [line.split()[0] for line in sections if line.startswith("  ") and line[2] != " "]
    assert listed == list(COMMANDS)
    assert not [line for line in sections if line.endswith("...")]  # each summary fits


def test_commands__modules_of_the_package__are_the_commands() -> None:
    modules = {path.stem for path in (ROOT / "cli" / "commands").glob("*.py")} - {"__init__"}
    assert sorted(COMMANDS) == sorted(modules)
    assert [command.name for command in cli.commands.values()] == list(COMMANDS)


@pytest.mark.slow
def test_command__called__imports_no_other_command() -> None:
    code = (
        "import sys\nfrom mlctl.cli.main import cli\n"
        "cli(['down', '--help'], standalone_mode=False)\n"
        "print(*(name for name in sys.modules if name.startswith('mlctl.cli.commands.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "mlctl.cli.commands.down"


def test_version__option__prints_the_packages_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"mlctl, version {__version__}\n"


@pytest.mark.parametrize(("name", "command"), list(every_command()))
def test_command__each__has_json_and_help(name: str, command: click.Command) -> None:
    is_group = isinstance(command, click.Group)
    assert is_group or "as_json" in {parameter.name for parameter in command.params}
    assert command.help
    result = CliRunner().invoke(cli, [*name.split()[1:], "--help"])
    assert result.exit_code == 0


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion__each_shell__has_a_script_that_calls_mlctl(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_MLCTL_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("down", "shop"), 3, "shop"),
        (("status", "shop"), 3, "shop"),
        (("history", "shop"), 3, "shop"),
        (("history", "shop", "--at", "9999-12-31T23:59-14:00"), 2, "--at"),
        (("rollback", "shop"), 3, "shop"),
        (("up", "shop", "digits"), 3, "digits"),
        (("promote", "shop", "digits", "--steps", "a,b"), 2, "percents"),
        (("up", "shop", "digits", "--port", "0"), 2, "--port"),
        (("pull", "digits", "--out", "there"), 3, "digits"),
        (("build", "digits"), 3, "digits"),
        (("optimize", "digits", "--data", "missing.npz"), 2, "missing.npz"),
    ],
)
def test_command__missing_argument__is_named(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = Mlctl(tmp_path).run(*arguments)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_commands_page__generated_again__is_the_same() -> None:
    page = ROOT / "docs" / "commands.md"
    assert page.read_text() == commands_markdown(), "run `python -m docs.generate`"


@pytest.mark.slow
def test_command__run_in_a_folder__writes_nothing_to_it(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    mlctl = Mlctl(home)
    for arguments in (("models",), ("status",), ("doctor",)):
        done = subprocess.run(
            [sys.executable, "-m", "mlctl.cli.main", *arguments],
            env=mlctl.environment,
            cwd=here,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert list(here.iterdir()) == []
