"""`mlctl demo`: the whole chain with a model of handwritten digits."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import PORT
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.progress import interruptible, uninterrupted

if TYPE_CHECKING:
    from mlctl.examples.digits.story import Story, Summary


class _Narration:
    """Shows chapters, commands and remarks on stderr, so that --json leaves stdout alone."""

    def __init__(self, output: CommandOutput) -> None:
        self._console = output.stderr

    def chapter(self, text: str) -> None:
        self._console.print()
        self._console.rule(text, align="left", style="cyan")

    def command(self, line: str) -> None:
        self._console.print(f"$ {line}", style="bold", markup=False)

    def output(self, line: str) -> None:
        self._console.print(line, markup=False)

    def remark(self, text: str) -> None:
        self._console.print(text, markup=False)


@click.command()
@click.option(
    "--keep-running",
    "keep",
    is_flag=True,
    help="Leave the deployment running, and print how to call it.",
)
@click.option("--port", type=PORT, help="Port to listen on.  [default: a free port]")
@reporting
def demo(output: CommandOutput, keep: bool, port: int | None) -> None:
    """Run the whole chain with a small demo model.

    Trains, optimizes, builds, deploys and promotes it, and rolls a bad version back. Needs no
    setup; state is in a temporary folder, which is removed at the end without --keep-running.
    """
    from mlctl.core.ports import require_free
    from mlctl.examples.digits.story import Story

    if port is not None:
        require_free("127.0.0.1", port)
    finished = False
    with interruptible():
        home = Path(tempfile.mkdtemp(prefix="mlctl-demo-"))
        story = Story(home, port, _Narration(output))
        try:
            summary = story.run()
            finished = True
        finally:
            if not (keep and finished):
                with uninterrupted():
                    _remove(story)
    if output.as_json:
        kept = {"url": story.infer_url, "home": str(home)} if keep else None
        output.document({**summary.as_dict(), "kept": kept})
    else:
        _show(output, summary)
    if keep:
        _say_how_to_call(output, story)


def _remove(story: Story) -> None:
    """Stop the demo's deployment and remove its folder, even if stopping fails."""
    try:
        story.stop()
    finally:
        shutil.rmtree(story.home)


def _show(output: CommandOutput, summary: Summary) -> None:
    from mlctl.cli.variants import models_table
    from mlctl.rollout.client.rendering import verdict_text

    output.stderr.print()
    models_table(output, summary.variants)
    output.table(
        ("Phase", "Requests>", "Failed>", "p50 ms>", "p99 ms>"),
        (
            (p.name, str(p.sent), str(p.failed), f"{p.p50_ms:.1f}", f"{p.p99_ms:.1f}")
            for p in summary.phases
        ),
        "Live traffic",
    )
    back = summary.rollback
    output.line(f"Automatic rollback: {verdict_text(back['verdict'])}")
    output.line(
        f"  {back['restored'] - back['exposed']:.1f} s after the first request reached it, "
        f"{back['restored'] - back['first_bad']:.1f} s after the first evaluation that found it bad"
    )
    output.line(f"@champion is {summary.champion}, the better version")
    output.line(f"The demo took {summary.seconds:.0f} s")


def _say_how_to_call(output: CommandOutput, story: Story) -> None:
    output.note("The deployment is still running. Send it an image:")
    output.note(f"  curl -s {story.infer_url} -H content-type:application/json \\")
    output.note(f"    -d @{story.write_example()}")
    output.note("Inspect it, and stop it when you are done:")
    output.note(f"  export MLCTL_HOME={story.home}")
    mlctl = "mlctl" if shutil.which("mlctl") else sys.argv[0]
    output.note(f"  {mlctl} status shop; {mlctl} history shop; {mlctl} models")
    output.note(f"  {mlctl} down shop; rm -r {story.home}")
