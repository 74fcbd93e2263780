"""`mlctl completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@reporting
def completion(output: CommandOutput, shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
    Add one line to the start file of your shell:
      bash  ~/.bashrc                              eval "$(mlctl completion bash)"
      zsh   ~/.zshrc                               eval "$(mlctl completion zsh)"
      fish  ~/.config/fish/completions/mlctl.fish  mlctl completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    script = found(root, {}, "mlctl", "_MLCTL_COMPLETE").source()
    if output.as_json:
        output.document({"shell": shell, "script": script})
    else:
        click.echo(script)
