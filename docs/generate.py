"""Write the pages that are generated from the code: `python -m docs.generate`.

Tests compare the committed pages with what this writes, so they cannot go stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from bundle.errors import ERROR_TABLE
from bundle.manifest import manifest_json_schema
from cli.main import cli
from rollout.client.spec_file import spec_schema

HELP_WIDTH = 96


def error_table_markdown() -> str:
    """The page `docs/errors.md`: every error with its statuses and hint."""
    rows = [
        f"| `{code.value}` | {spec.meaning} | {spec.hint} | {spec.exit_code} | {spec.http} "
        f"| {spec.grpc} |"
        for code, spec in ERROR_TABLE.items()
    ]
    head = [
        "# Errors",
        "",
        "Every error has a stable code. Commands print it with `--json` and exit with its exit",
        "code; the HTTP and gRPC APIs answer with its statuses. A command that succeeds exits 0.",
        "",
        "| Code | Meaning | What to do | Exit code | HTTP | gRPC |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def manifest_schema_text() -> str:
    """The file `docs/manifest.schema.json`."""
    return json.dumps(manifest_json_schema(), indent=2, ensure_ascii=False) + "\n"


def rollout_schema_text() -> str:
    """The file `docs/rollout.schema.json`."""
    return json.dumps(spec_schema(), indent=2, ensure_ascii=False) + "\n"


def every_command(
    name: str = "mlctl", command: click.Command = cli
) -> Iterator[tuple[str, click.Command]]:
    """A command and those of its groups, each with the words that call it."""
    yield name, command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from every_command(f"{name} {each.name}", each)


def commands_markdown() -> str:
    """The page `docs/commands.md`: the help of every command."""
    parts = ["# Commands\n"]
    for name, command in every_command():
        context = click.Context(
            command,
            info_name=name,
            terminal_width=HELP_WIDTH,
            help_option_names=cli.context_settings["help_option_names"],
            show_default=True,
        )
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write every generated page next to this file."""
    folder = Path(__file__).parent
    (folder / "commands.md").write_text(commands_markdown())
    (folder / "errors.md").write_text(error_table_markdown())
    (folder / "manifest.schema.json").write_text(manifest_schema_text())
    (folder / "rollout.schema.json").write_text(rollout_schema_text())


if __name__ == "__main__":
    main()
