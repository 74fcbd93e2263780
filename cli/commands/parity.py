"""`mlctl parity`: one Bento asked in every way, and whether the answers are the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.benches import interruptible
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from loadtest.parity.compare import PathComparison
    from loadtest.parity.run import ParityReport


@click.command()
@click.argument("bento")
@click.option(
    "--rows",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="More rows beside the golden ones: a .npz file of the inputs.",
)
@reporting
def parity(output: CommandOutput, /, bento: str, rows: Path | None) -> None:
    """Compare what BENTO answers online, in a batch and in a stream.

    BENTO (NAME:VERSION, or NAME for the newest) is served on free ports for as long as it takes.
    Its golden rows are asked in every way, alone and together. On the CPU in fp32 the answers must
    have the same bits, elsewhere they must be as near as the manifest says. Exits 5 if they are
    not. Of a Bento with several models the first is asked, of a pipeline the whole; BENTO/MODEL is
    another, or one stage.
    """
    from loadtest.parity.run import run_parity
    from rollout.drivers.local.ports import free_ports
    from services.runtime.bento_store import find_bento
    from services.runtime.scorable import find_scorable

    wanted, slash, model = bento.partition("/")
    tag = find_bento(wanted).tag
    asked = f"{tag}{slash}{model}"
    http, grpc = free_ports(2)
    with interruptible(), output.working() as tell:
        found = run_parity(tag, find_scorable(asked), (http, grpc), rows, tell)
    _show(output, asked, found)
    if not found.passed:
        raise click.exceptions.Exit(5)


def _show(output: CommandOutput, tag: str, found: ParityReport) -> None:
    if output.as_json:
        output.document({"bento": tag, **found.as_dict()})
        return
    columns = ("Way", "rows of", "a request>", "rows>", "other bits>", "largest>", "allowed>", "")
    output.table(columns, [_line(each) for each in found.findings], f"{tag} {found.digest[:12]}")
    wrong = [each for each in found.findings if not each.passed]
    if wrong:
        output.note(f"{len(wrong)} of {len(found.findings)} comparisons failed")


def _line(finding: PathComparison) -> tuple[str, ...]:
    about = f" of {finding.output!r}" if finding.output and finding.differing else ""
    told = f": {finding.detail}" if finding.detail else ""
    seen = finding.rows > 0
    return (
        finding.path,
        finding.data,
        f"{finding.size:,}",
        f"{finding.rows:,}" if seen else "-",
        f"{finding.differing:,}" if seen else "-",
        _number(finding.largest) if seen else "-",
        ("0" if finding.allowed is None else _number(finding.allowed)) if seen else "-",
        f"{finding.verdict.value}{about}{told}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
