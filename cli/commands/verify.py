"""`mlctl verify`: whether a bundle, or a Bento, is whole and of whom it is said to be."""

from __future__ import annotations

from pathlib import Path

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("what", metavar="BUNDLE|BENTO")
@click.option(
    "--public-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Prove the signatures as well, under this key, PEM.",
)
@reporting
def verify(output: CommandOutput, what: str, public_key: Path | None) -> None:
    """Check every file of a bundle's folder, or of every bundle in a Bento of the store.

    Exits 4 with the first file that is altered, missing or unlisted; with --public-key also
    if there is no signature, or it is not by that key.
    """
    from bento.signed import find_signable
    from services.runtime.signing import check_signature

    found = find_signable(what)
    if public_key is not None:
        for bundle, signature in found:
            check_signature(bundle, public_key, signature)
    signed = public_key is not None
    if output.as_json:
        output.document(
            [
                {"model": bundle.manifest.name, "digest": bundle.digest, "signed": signed}
                for bundle, _ in found
            ]
        )
        return
    for bundle, _ in found:
        words = "whole, and signed with that key" if signed else "whole"
        output.line(f"{bundle.manifest.name} {bundle.digest}: {words}")
