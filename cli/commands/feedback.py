"""`mlctl feedback`: labels for what a deployment predicted."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.rollout.client.feedback import FeedbackReport


@click.command()
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@reporting
def feedback(output: CommandOutput, name: str, file: str) -> None:
    """Add the labels in FILE to the recorded predictions of NAME.

    FILE has the columns request_id (the x-request-id of the answer), label, and row where a request
    has several: .csv, .jsonl or .parquet, or `-` for CSV or JSON lines on standard input. A later
    label of a row replaces an earlier one. A rollout with --min-accuracy is judged by the labels.
    """
    from mlctl.rollout.client.feedback import add_feedback
    from mlctl.rollout.client.label_file import read_label_stream, read_labels

    labels = read_label_stream(sys.stdin) if file == "-" else read_labels(Path(file))
    report = add_feedback(name, labels)
    if output.as_json:
        output.document({"name": name, **asdict(report)})
    else:
        _show(output, report)


def _show(output: CommandOutput, report: FeedbackReport) -> None:
    from mlctl.rollout.client.rendering import accuracy_text

    repeated = f", {report.repeated} were replaced by a later line" if report.repeated else ""
    output.line(
        f"{report.joined} of {report.labels} labels belong to a recorded prediction, "
        f"{report.unknown} to none{repeated}"
    )
    for each in report.revisions:
        output.line(f"  {accuracy_text(asdict(each))}")
