"""Options of the commands that list the packages of an image."""

from __future__ import annotations

from pathlib import Path

import click

from mlctl.bento.containers.extras import EXTRAS


class _Extras(click.ParamType[tuple[str, ...]]):
    """Names of EXTRAS separated by commas, in the order of EXTRAS."""

    name = "extras"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):  # already converted
            return value
        names = [name.strip() for name in str(value).split(",")]
        if wrong := next((name for name in names if name not in EXTRAS), None):
            self.fail(f"{wrong!r} is not one of {', '.join(EXTRAS)}.", param, ctx)
        return tuple(name for name in EXTRAS if name in names)


EXTRAS_OPTION = click.option(
    "--with",
    "extras",
    type=_Extras(),
    default=(),
    metavar="NAME[,NAME...]",
    help=f"Add packages to those of the server: {', '.join(EXTRAS)}.",
)
PLATFORM_OPTION = click.option(
    "--platform",
    type=click.Choice(["linux/amd64", "linux/arm64"]),
    default="linux/amd64",
    help="Platform of the image.",
)
LOCK_OPTION = click.option(
    "--lock",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Lock file with packages and hashes; no package index is used.",
)
