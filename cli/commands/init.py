"""`mlctl init`: a project that trains, optimizes, serves and gates one model."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@reporting
def init(output: CommandOutput, folder: Path) -> None:
    """Write a project for one model to FOLDER.

    FOLDER is the current one by default. Its train script, evaluation rows, rollout.yaml and GitHub
    Actions workflow work at once with a small PyTorch model; replace it with yours. FOLDER's name
    becomes the model's name. Existing files are never overwritten.
    """
    from mlctl.examples.skeleton.create import create_project

    project = create_project(folder)
    names = [file.relative_to(project.folder).as_posix() for file in project.files]
    if output.as_json:
        output.document(
            {"folder": str(project.folder), "model": project.model, "files": sorted(names)}
        )
        return
    for name in names:
        output.line(f"wrote {folder / name}")
    enter = "" if project.folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    output.note(f"Next: {enter}. ./.env && python train.py; README.md has the commands after it")
