"""`mlctl parity`: whether a Bento answers the same online, in batch and in a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.progress import interruptible
from mlctl.core.errors import ERROR_TABLE, ErrorCode

if TYPE_CHECKING:
    from mlctl.loadtest.parity.compare import PathComparison
    from mlctl.loadtest.parity.run import ParityReport


@click.command()
@click.argument("bento")
@click.option(
    "--data",
    metavar="FILE|MODULE:FUNCTION",
    help="More rows to compare besides the golden rows: data as for `mlctl optimize`.",
)
@reporting
def parity(output: CommandOutput, /, bento: str, data: str | None) -> None:
    """Compare what BENTO answers online, in batch and in a stream.

    BENTO (NAME:VERSION, or NAME for the newest) is served on free ports meanwhile. Its golden rows
    go through each path, one by one and joined. On the CPU in fp32 the answers must be equal bit
    by bit, elsewhere within the manifest's tolerance. Exits 5 if they are not. BENTO/MODEL names
    one of several models or one stage of a pipeline; by default the first model, or the pipeline.
    """
    from mlctl.loadtest.parity.run import run_parity
    from mlctl.services.layout.bento_store import find_bento
    from mlctl.services.layout.scorable import find_scorable

    name, slash, model = bento.partition("/")
    tag = find_bento(name).tag
    reference = f"{tag}{slash}{model}"
    with interruptible(), output.working() as report:
        found = run_parity(tag, find_scorable(reference), data, report)
    _show(output, reference, found)
    if not found.passed:
        raise click.exceptions.Exit(ERROR_TABLE[ErrorCode.PARITY_FAILED].exit_code)


def _show(output: CommandOutput, tag: str, found: ParityReport) -> None:
    if output.as_json:
        output.document({"bento": tag, **found.as_dict()})
        return
    columns = ("Path", "Data", "Per request>", "Rows>", "Differing>", "Max error>", "Limit>", "")
    output.table(columns, [_line(each) for each in found.findings], f"{tag} {found.digest[:12]}")
    wrong = [each for each in found.findings if not each.passed]
    if wrong:
        output.note(f"{len(wrong)} of {len(found.findings)} comparisons failed")


def _line(finding: PathComparison) -> tuple[str, ...]:
    about = f" of {finding.output!r}" if finding.output and finding.differing else ""
    detail = f": {finding.detail}" if finding.detail else ""
    compared = finding.rows > 0
    return (
        finding.path,
        finding.data,
        f"{finding.size:,}",
        f"{finding.rows:,}" if compared else "-",
        f"{finding.differing:,}" if compared else "-",
        _number(finding.largest) if compared else "-",
        ("0" if finding.allowed is None else _number(finding.allowed)) if compared else "-",
        f"{finding.verdict.value}{about}{detail}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
