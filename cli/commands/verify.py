"""`mlctl verify`: check the files and signatures of a bundle or a Bento."""

from __future__ import annotations

from pathlib import Path

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("reference", metavar="BUNDLE|BENTO")
@click.option(
    "--public-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check the signatures too, with this public key (PEM).",
)
@reporting
def verify(output: CommandOutput, reference: str, public_key: Path | None) -> None:
    """Check every file of a bundle's folder or of a Bento.

    Exits 4 and names the first file that is altered, missing or unlisted; with --public-key also
    if a signature is missing or was made with another key.
    """
    from mlctl.bento.signed import find_signable
    from mlctl.services.layout.signing import check_signature

    found = find_signable(reference)
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
        words = "complete, and signed with that key" if signed else "complete"
        output.line(f"{bundle.manifest.name} {bundle.digest}: {words}")
