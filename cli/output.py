"""How commands print: results on stdout, progress and errors on stderr, JSON with --json."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, Self, overload

import click

from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.core.packages import install_hint

if TYPE_CHECKING:
    from rich.console import Console

DEBUG_VARIABLE = "MLCTL_DEBUG"
PIPE_WIDTH = 400
LOG_SECONDS = 10.0


class CommandOutput:
    """The output of a command; with `as_json` stdout has JSON and nothing else."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        # Libraries are silenced by replacing sys.stderr, which must not silence a note.
        self._errors = sys.stderr
        # Without a terminal rich adds nothing, and its import takes 15 ms.
        self._terminal = any(each and each.isatty() for each in (sys.stdout, sys.stderr))

    @functools.cached_property
    def stdout(self) -> Console:
        """The console of results; lines are not wrapped in a pipe or a file."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else PIPE_WIDTH
        return Console(highlight=False, emoji=False, soft_wrap=True, width=width)

    @functools.cached_property
    def stderr(self) -> Console:
        """The console of progress and errors."""
        from rich.console import Console

        return Console(file=self._errors, highlight=False, emoji=False, soft_wrap=True)

    @property
    def live(self) -> bool:
        """Whether a moving progress line can be drawn."""
        return not self.as_json and self._terminal and self.stderr.is_terminal

    @contextlib.contextmanager
    def working(self, *, log: bool = False) -> Iterator[Callable[[str], None]]:
        """Show a status line while the block runs; the yielded function sets its text.

        With `log` the text is printed every 10 s where no line can move, as in a pipe.
        """
        if not self.live:
            with _Log(self.note, LOG_SECONDS) if log else contextlib.nullcontext() as printed:
                yield (lambda _text: None) if printed is None else printed.set
            return
        from rich.text import Text

        with self.stderr.status("") as status:
            yield lambda text: status.update(Text(printable(text)))

    def restore_terminal(self) -> None:
        """Show the cursor again, which a process that died in `working` has left hidden."""
        if self.live:
            self.stderr.show_cursor()

    def document(self, value: object) -> None:
        """Print the command's one JSON document."""
        _echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

    def result(self, document: object, *lines: str) -> None:
        """Print the document with --json, else the lines."""
        if self.as_json:
            self.document(document)
        else:
            for text in lines:
                self.line(text)

    def line(self, text: str) -> None:
        """Print one line of the result, without interpreting markup."""
        if self._terminal:
            self.stdout.print(printable(text), markup=False)
        else:
            _echo(printable(text))

    def marked(self, mark: str, style: str, name: str, text: str) -> None:
        """Print one aligned line of a report: a coloured mark, a name and a text."""
        from rich.text import Text

        line = Text.assemble((f"{mark:<5}", style), f"{name:<14} ", printable(text))
        self.stdout.print(line)

    def note(self, text: str) -> None:
        """Print progress on stderr; nothing with --json."""
        if self.as_json:
            return
        if self._terminal:
            self.stderr.print(printable(text), markup=False, style="dim")
        elif self._errors is not None:  # None if it was closed
            click.echo(printable(text), self._errors)

    def note_from_signal(self, text: str) -> None:
        """Print a note from a signal handler, which may interrupt rich or its import."""
        if not self.as_json:
            start = "\n" if sys.stderr.isatty() else ""
            with contextlib.suppress(OSError):  # stderr is closed
                os.write(2, f"{start}{printable(text)}\n".encode())

    def warn_unknown_variables(self) -> None:
        """Warn on stderr about `MLCTL_*` variables that nothing reads, even with --json."""
        from mlctl.core.variables import unknown_variables

        if not unknown_variables(os.environ, ()):
            return  # the server's settings take time to load
        from mlctl.services.online.settings import ServerSettings

        for sentence in unknown_variables(os.environ, ServerSettings.model_fields):
            self.stderr.print(f"Warning: {printable(sentence)}", markup=False, style="yellow")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
        """Print a table; columns whose name ends in ">" are right-aligned."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in columns:
            justify: Literal["left", "right"] = "right" if name.endswith(">") else "left"
            table.add_column(name.rstrip(">"), justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self.stdout.print(table)

    def fail(self, error: MlctlError) -> NoReturn:
        """Print `error` and exit with its exit code."""
        if self.as_json:
            with contextlib.suppress(OSError):  # the disk may be full
                self.document({"error": error.as_dict()})
        else:
            self.stderr.print(f"Error: {printable(error.message)}", markup=False, style="bold red")
            if error.hint:
                self.stderr.print(f"Hint: {printable(error.hint)}", markup=False)
        raise click.exceptions.Exit(error.spec.exit_code)


class _Log:
    """Prints the latest text as a note every few seconds, with the time since the first one."""

    def __init__(self, note: Callable[[str], None], seconds: float) -> None:
        self._note, self._seconds = note, seconds
        self._text = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def set(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._end.wait(self._seconds):
            if self._text:
                self._note(f"  {self._text} ({time.monotonic() - begin:.0f} s)")


def _echo(text: str) -> None:
    """Print on stdout; ends the command with exit code 1 if the reader has gone, as rich does."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # The text is still buffered, and must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None


def printable(text: str) -> str:
    """Return `text` without control characters: names from a registry or a log are untrusted."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


P = ParamSpec("P")


def counted(count: int, thing: str) -> str:
    """Return a count with its noun: "1 file", "1,500 files"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


Body = Callable[Concatenate[CommandOutput, P], None]


@overload
def reporting(function: Body[P], /) -> Callable[..., None]: ...
@overload
def reporting(*, json_lines: bool) -> Callable[[Body[P]], Callable[..., None]]: ...
def reporting(
    function: Body[P] | None = None, /, *, json_lines: bool = False
) -> Callable[..., None] | Callable[[Body[P]], Callable[..., None]]:
    """Turn `function(output, ...)` into a command's body: adds --json, reports every error.

    With `json_lines` the command prints several JSON documents, one per line.
    """
    text = "Print JSON lines on stdout." if json_lines else "Print one JSON document on stdout."
    if function is not None:
        return _with_json(function, text)
    return lambda body: _with_json(body, text)


def _with_json(function: Body[P], text: str) -> Callable[..., None]:
    @click.option("--json", "as_json", is_flag=True, help=text)
    @functools.wraps(function)
    def body(as_json: bool, *args: P.args, **kwargs: P.kwargs) -> None:
        output = CommandOutput(as_json=as_json)
        try:
            if click.get_current_context().invoked_subcommand is None:
                output.warn_unknown_variables()
            function(output, *args, **kwargs)
        except MlctlError as error:
            output.fail(error)
        except KeyboardInterrupt:
            output.fail(MlctlError(ErrorCode.INTERRUPTED, "interrupted"))
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except ModuleNotFoundError as error:
            output.fail(_missing_package(error))
        except OSError as error:
            from mlctl.core.os_errors import translate_os_error

            output.fail(translate_os_error(error) or _unexpected(error))
        except Exception as error:  # noqa: BLE001 - the last line of defence of a command
            output.fail(_unexpected(error))

    return body


class ReportingGroup(click.Group):
    """A group of commands that prints usage errors as JSON with --json."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if not options.get("standalone_mode", True) or "--json" not in arguments:
            return super().main(arguments, *rest, **options)
        try:
            code = super().main(arguments, *rest, **{**options, "standalone_mode": False})
        except click.UsageError as error:
            code = _print_usage_error(error)
        except click.Abort:
            code = ERROR_TABLE[ErrorCode.INTERRUPTED].exit_code
        sys.exit(code if isinstance(code, int) else 0)


def _print_usage_error(error: click.UsageError) -> int:
    command = error.ctx.command_path if error.ctx is not None else "mlctl"
    failure = MlctlError(
        ErrorCode.INVALID_INPUT, error.format_message(), f"`{command} --help` shows the options."
    )
    click.echo(json.dumps({"error": failure.as_dict()}, indent=2, ensure_ascii=False))
    return failure.spec.exit_code


# Which extra brings the packages that commands import inside their bodies.
_EXTRAS = {
    "adbc_driver_postgresql": "postgres",
    "authlib": "avro",
    "bentoml": "serve",
    "cachetools": "avro",
    "confluent_kafka": "kafka",
    "cyclonedx": "containers",
    "duckdb": "duckdb",
    "envoy": "rollout",
    "fastavro": "avro",
    "fsspec": "batch",
    "google": "serve",
    "grpc": "serve",
    "httptools": "serve",
    "httpx": "rollout",
    "jinja2": "optimize",
    "mlflow": "optimize",
    "onnx": "optimize",
    "onnxruntime": "cpu",
    "onnxscript": "optimize",
    "packageurl": "containers",
    "orjson": "serve",
    "prometheus_client": "serve",
    "pyarrow": "batch",
    "pandas": "sklearn",
    "ray": "ray",
    "redis": "redis",
    "sklearn": "sklearn",
    "starlette": "rollout",
    "torch": "optimize",
    "uvicorn": "rollout",
    "uvloop": "serve",
    "yaml": "serve",
}


def _missing_package(error: ModuleNotFoundError) -> MlctlError:
    root = (error.name or "").split(".")[0]
    extra = _EXTRAS.get(root)
    if extra is None:
        return _unexpected(error)
    return MlctlError(
        ErrorCode.RUNTIME_MISSING,
        f"the package {root!r} is not installed",
        install_hint(extra),
    )


def _unexpected(error: Exception) -> MlctlError:
    from mlctl.core.os_errors import is_disk_full

    if is_disk_full(error):
        return MlctlError(ErrorCode.DISK_FULL, "there is no space left")
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    return MlctlError(
        ErrorCode.INTERNAL,
        f"{type(error).__name__}: {error}",
        f"This is a defect of mlctl. Run it again with {DEBUG_VARIABLE}=1 to see the traceback.",
    )
