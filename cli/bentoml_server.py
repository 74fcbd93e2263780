"""`python -m mlctl.cli.bentoml_server serve ...`: BentoML's command, which Ctrl-C ends in one line.

It starts with SIGINT blocked, so that a Ctrl-C while Python itself starts is not lost.
"""

from __future__ import annotations

import signal
import sys

from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.core.garbage import rare_collection


def main() -> None:
    """Run BentoML's command; exit 130 if it is interrupted before its server handles signals."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        import click

        try:
            with rare_collection():
                from bentoml_cli.cli import cli

                # The Bento brings its own mlctl, which knows the bundles beside it.
                for name in [each for each in sys.modules if each.partition(".")[0] == "mlctl"]:
                    del sys.modules[name]
                cli(prog_name="bentoml", standalone_mode=False)
        except click.Abort:
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("Error: interrupted", file=sys.stderr)
        sys.exit(ERROR_TABLE[ErrorCode.INTERRUPTED].exit_code)


if __name__ == "__main__":
    main()
