import errno
import json
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mlctl.cli.output import DEBUG_VARIABLE, CommandOutput, counted, printable, reporting
from mlctl.core.errors import ErrorCode, MlctlError
from tests.support.wait import wait_until


def run(error: BaseException | None, *args: str) -> Result:
    @click.command()
    @reporting
    def command(output: CommandOutput) -> None:
        if error is not None:
            raise error
        if output.as_json:
            output.document({"answer": 42})
        else:
            output.note("thinking")
            output.line("42")

    return CliRunner().invoke(command, args)


def test_output__result_and_note__go_to_stdout_and_stderr() -> None:
    result = run(None)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "42\n", "thinking\n")


def test_working__in_a_pipe_with_a_log__prints_the_latest_text_again_and_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.cli.output.LOG_SECONDS", 0.01)
    printed: list[str] = []

    def has(text: str) -> bool:
        printed.extend(capsys.readouterr().err.splitlines())
        return sum(line.startswith(f"  {text} (") for line in printed) >= 2

    with CommandOutput(as_json=False).working(log=True) as show:
        show("int4: 1/9")
        wait_until(lambda: has("int4: 1/9"))
        show("int4: 2/9")
        wait_until(lambda: has("int4: 2/9"))
    assert re.fullmatch(r"  int4: 2/9 \(\d+ s\)", printed[-1])
    assert not any("(_run)" in thread.name for thread in threading.enumerate())


def test_line__in_a_pipe__is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    CommandOutput(as_json=False).line(":bug: [b]x[/b]\t|")
    assert capsys.readouterr().out == ":bug: [b]x[/b]\t|\n"


_PIPED = """
import sys
import click
from mlctl.cli.output import reporting
@click.command()
@reporting
def command(output):
    with output.working() as show:
        show("thinking")
    output.note("thought")
    output.line("42")
try:
    command()
finally:
    assert "rich" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("read", [True, False])
def test_line__in_a_pipe__needs_neither_rich_nor_a_reader(read: bool) -> None:
    command = [sys.executable, "-c", _PIPED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not read:
            process.stdout.close()
        _out, errors = process.communicate()
    assert (errors, process.returncode) == (b"thought\n", 0 if read else 1)


def test_output__json__is_one_document_on_stdout() -> None:
    result = run(None, "--json")
    assert json.loads(result.stdout) == {"answer": 42}
    assert result.stderr == ""


def test_reporting__mlctl_error__prints_hint_and_sets_exit_code() -> None:
    result = run(MlctlError(ErrorCode.PORT_TAKEN, "port 80 is taken", "use 81"))
    assert result.exit_code == 8
    assert result.stdout == ""
    assert result.stderr == "Error: port 80 is taken\nHint: use 81\n"


def test_reporting__mlctl_error_with_json__is_a_document_on_stdout() -> None:
    result = run(MlctlError(ErrorCode.PORT_TAKEN, "port 80 is taken"), "--json")
    assert result.exit_code == 8
    assert json.loads(result.stdout)["error"]["code"] == "port_taken"
    assert result.stderr == ""


def test_reporting__misspelt_variable__every_command_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_HOEM", "/tmp/x")
    assert "did you mean MLCTL_HOME?" in run(MlctlError(ErrorCode.PORT_TAKEN, "taken")).stderr


def test_reporting__ctrl_c__exits_130() -> None:
    assert run(KeyboardInterrupt()).exit_code == 130


def test_reporting__missing_package__names_the_extra() -> None:
    result = run(ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    assert result.exit_code == 7
    assert "pip install -c constraints.txt '.[optimize]'" in result.stderr


def test_reporting__unexpected_error__shows_its_traceback_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = run(ValueError("odd"))
    assert quiet.exit_code == 1
    assert "Traceback" not in quiet.stderr
    assert "ValueError: odd" in quiet.stderr
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    assert "Traceback" in run(ValueError("odd")).stderr


def test_reporting__sqlite_has_no_space__is_a_full_disk() -> None:
    result = run(sqlite3.OperationalError("database or disk is full"))
    assert (result.exit_code, "there is no space left" in result.stderr) == (13, True)


def test_output__full_disk__is_reported_as_such() -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    result = run(caught.value)
    assert result.exit_code == 13
    assert "there is no space left" in result.stderr
    assert "run the same command again" in result.stderr


def test_an_inaccessible_path__in_any_command__is_named_with_a_remedy() -> None:
    result = run(PermissionError(errno.EACCES, "Permission denied", "/data/rows"))
    assert result.exit_code == 2
    assert "Error: cannot access /data/rows: permission denied" in result.stderr
    assert "Hint: Check the owner and permissions" in result.stderr
    assert DEBUG_VARIABLE not in result.stderr


def test_reporting__unknown_option__exits_2() -> None:
    assert run(None, "--nonsense").exit_code == 2


def test_printable__control_characters__are_replaced() -> None:
    assert printable("a\x1b[31mb\nc\x07") == "a\ufffd[31mb\nc\ufffd"


def test_table__in_a_pipe__is_not_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [str(number) * 30 for number in range(6)]
    CommandOutput(as_json=False).table([f"column {number}" for number in range(6)], [cells])
    printed = capsys.readouterr().out
    assert [cell for cell in cells if cell not in printed] == []


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1500, "1,500 files")]
)
def test_counted__number__decides_the_plural(count: int, said: str) -> None:
    assert counted(count, "file") == said
