"""`mlctl containerize`: what an image of a Bento is built from, and the image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.image_options import EXTRAS_OPTION, LOCK_OPTION, PLATFORM_OPTION
from mlctl.cli.options import OUTPUT_FOLDER
from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.bento.containers.container import Engine


@click.command()
@click.argument("bento")
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "podman", "buildah", "none"]),
    default="auto",
    help="Program that builds the image; auto takes the first that is installed.",
)
@click.option(
    "--out",
    "folder",
    type=OUTPUT_FOLDER,
    help="Folder of the build context.  [default: one under $MLCTL_HOME]",
)
@click.option("--image", help="NAME:TAG of the image.  [default: the Bento's tag]")
@click.option(
    "--base",
    help="Base image, best with its digest: NAME@sha256:...  [default: Python on Debian 12]",
)
@EXTRAS_OPTION
@PLATFORM_OPTION
@LOCK_OPTION
@reporting
def containerize(
    output: CommandOutput,
    bento: str,
    engine: str,
    folder: Path | None,
    image: str | None,
    base: str | None,
    extras: tuple[str, ...],
    platform: str,
    lock: Path | None,
) -> None:
    """Write the build context of BENTO's image, and build it.

    The image is built only if an engine is installed, see --engine. `docker run IMAGE` serves;
    `docker run IMAGE batch` and `docker run IMAGE stream` take the options of `mlctl batch run` and
    `mlctl stream run`, and need the packages of --with.

    BENTO is NAME:VERSION, or NAME for the newest. The hashes of its packages come from the
    package index that pip uses. The context needs no mlctl: any engine builds it.
    """
    from mlctl.bento.containers.container import build_image, default_base, write_context
    from mlctl.bento.containers.lock import Platform
    from mlctl.bento.containers.resolve import lock_for
    from mlctl.core.home import state_dir
    from mlctl.services.layout.bento_store import find_bento

    found = find_bento(bento)
    target = Platform.of(platform)
    chosen = _engine(engine)
    name = image or found.tag
    if lock is None:
        output.note("Finding the hashes of the packages ...")
    locked = lock_for(found, target, lock, extras)
    named = base or default_base()
    target_folder = folder or state_dir("containers") / found.tag.replace(":", "-") / target.machine
    context = write_context(found, locked, target, named, target_folder.absolute())
    if chosen is not None:
        output.note(f"Building {name} with {chosen} ...")
        build_image(chosen, context, name, target)
    built = None if chosen is None else name
    if output.as_json:
        output.document(
            {
                "bento": found.tag,
                "digest": context.digest,
                "context": str(context.folder),
                "base": named,
                "platform": platform,
                "packages": len(locked.packages),
                "with": extras,
                "engine": None if chosen is None else chosen.value,
                "image": built,
            }
        )
        return
    output.line(f"{found.tag}: build context in {context.folder}, digest {context.digest}")
    _print_next_step(output, context.folder, named, name, built)


def _print_next_step(
    output: CommandOutput, folder: Path, base: str, name: str, built: str | None
) -> None:
    if "@sha256:" not in base:
        output.note(f"The base {base} is a tag and may change; --base NAME@sha256:... does not.")
    if built is not None:
        output.line(f"Built {built}")
    else:
        output.note(f"Build it: docker build -t {name} -f {folder}/Containerfile {folder}")


def _engine(wanted: str) -> Engine | None:
    from mlctl.bento.containers.container import Engine, find_engine

    if wanted == "auto":
        return find_engine()
    return None if wanted == "none" else Engine(wanted)
