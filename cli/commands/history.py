"""`mlctl history`: every rollout of a deployment, and why it ended as it did."""

from __future__ import annotations

import click

from cli.output import Output, reporting


@click.command()
@click.argument("name")
@reporting
def history(output: Output, name: str) -> None:
    """Show every rollout of deployment NAME.

    The newest comes first, each with the verdict that ended it.
    """
    from cli.rollouts import local_time, rollout_document, verdict_text
    from rollout import deployments

    documents = [rollout_document(each) for each in deployments.history(name)]
    if output.as_json:
        output.document({"name": name, "rollouts": documents})
    elif not documents:
        output.note(f"{name} has had no rollout yet.")
    else:
        output.table(
            ("Rollout>", "When", "From", "To", "Outcome", "Verdict"),
            (
                (
                    str(each["id"]),
                    local_time(each["created"]),
                    each["live"]["bento"],
                    each["candidate"]["bento"],
                    each["outcome"] or f"under way ({each['phase']})",
                    verdict_text(each["verdict"]) if each["verdict"] else "",
                )
                for each in documents
            ),
        )
