"""`mlctl doctor`: is this machine ready?"""

from __future__ import annotations

from dataclasses import asdict

import click

from cli.output import CommandOutput, reporting

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command()
@reporting
def doctor(output: CommandOutput) -> None:
    """Check this machine: runtimes, packages, stores.

    Exits 7 if something is wrong.
    """
    from cli.checks import Severity, run_checks

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
        raise click.exceptions.Exit(7)
