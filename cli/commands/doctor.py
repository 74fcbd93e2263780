"""`mlctl doctor`: check this machine."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlctl.cli.output import CommandOutput, reporting
from mlctl.core.errors import ERROR_TABLE, ErrorCode

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command()
@reporting
def doctor(output: CommandOutput) -> None:
    """Check this machine: packages, settings, registry, stores.

    Exits 7 if a check fails; warnings concern commands that need more packages.
    """
    from mlctl.doctor.checks import Severity, run_checks

    findings = list(run_checks())
    if output.as_json:
        output.document({"findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            output.marked(
                finding.severity.value, _STYLE[finding.severity], finding.check, finding.message
            )
            if finding.remedy:
                output.marked("", "", "", finding.remedy)
    if any(finding.severity is Severity.FAIL for finding in findings):
        raise click.exceptions.Exit(ERROR_TABLE[ErrorCode.RUNTIME_MISSING].exit_code)
