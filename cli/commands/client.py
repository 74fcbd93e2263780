"""`mlctl client`: a typed client of one model."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mlctl.cli.output import CommandOutput, counted, reporting

# Those of mlctl.bento.clients.languages, which would load numpy for --help.
LANGUAGES = ("python", "proto", "openapi")


@click.command()
@click.argument("model")
@click.option(
    "--lang",
    "language",
    required=True,
    type=click.Choice(LANGUAGES),
    help="Language of the client, or a description of the API.",
)
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write into.  [default: NAME-LANG]",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@reporting
def client(
    output: CommandOutput, model: str, language: str, folder: Path | None, force: bool
) -> None:
    """Generate a typed client of MODEL from its signature.

    MODEL is a Bento (NAME:VERSION, or NAME for the newest), a Bento's or bundle's folder, or the
    URL of a running server (with MLCTL_TOKEN as its token). BENTO/NAME and URL/NAME name one of
    several models. The same model always gives the same files.
    """
    from mlctl.bento.clients.languages import GENERATORS, write_files
    from mlctl.bento.clients.source import find_source
    from mlctl.core.tokens import token_of

    found = find_source(model, token_of(os.environ))
    folder = folder or Path(f"{found.name}-{language}")
    files = GENERATORS[language](found)
    write_files(folder, files, force=force)
    if output.as_json:
        output.document(
            {
                "model": found.name,
                "digest": found.digest,
                "language": language,
                "path": str(folder),
                "files": sorted(files),
            }
        )
    else:
        written = counted(len(files), "file")
        output.line(f"{written} in {folder}: {found.name}, digest {found.digest}")
