"""`mlctl sign`: sign a bundle, or each bundle of a Bento."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mlctl.cli.output import CommandOutput, reporting

_FILE = click.Path(dir_okay=False, path_type=Path)
PASSWORD_VARIABLE = "MLCTL_KEY_PASSWORD"  # noqa: S105 - the name of the variable


@click.command()
@click.argument("reference", metavar="BUNDLE|BENTO")
@click.option(
    "--private-key",
    "key",
    type=_FILE,
    required=True,
    help="Private key (PEM); see docs/signing.md.",
)
@reporting
def sign(output: CommandOutput, reference: str, key: Path) -> None:
    """Sign a bundle's folder, or every bundle of a Bento.

    The signature is written next to the bundle as FOLDER.sig, or into the Bento. If the key has a
    password, set MLCTL_KEY_PASSWORD.
    """
    from mlctl.bento.signed import find_signable
    from mlctl.services.layout.signing import sign as sign_bundle

    found = find_signable(reference)
    password = os.environ.get(PASSWORD_VARIABLE) or None
    for bundle, signature in found:
        sign_bundle(bundle, key, signature, password)
    if output.as_json:
        output.document(
            [
                {"model": bundle.manifest.name, "digest": bundle.digest, "signature": str(path)}
                for bundle, path in found
            ]
        )
        return
    for bundle, path in found:
        output.line(f"{bundle.manifest.name} {bundle.digest}: signed in {path}")
