"""Run the commands of the documentation: `python -m docs.run [PAGE ...]`, or `make docs-test`.

The blocks of a page that are marked `sh` run in order, as one bash script in an empty folder with a
home of its own; `<!-- exits N -->` before a block is the exit code that it must have. Defaults of
`mlctl promote` are the demo's, from a `mlctl.toml`. Every other block with commands stands below a
comment `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlctl.core.ports import free_ports

ROOT = Path(__file__).parents[1]
README = "README.md"
RUNNABLE = (README, "docs/tutorial.md", "docs/batch.md", "docs/stream.md")
# The times of `mlctl demo`.
CONFIG = """[promote]
steps = "5,25,50,100"
step-time = "1.5s"
min-requests = 15
bake-time = "2s"
burst = "1s"
shadow-time = "2s"
"""
# What the README's example takes from its reader: a table, its answers and a pipeline.
README_MODEL = """
import time

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

rng = np.random.default_rng(0)
rows = pd.DataFrame({"age": rng.uniform(18, 80, 1000), "city": rng.choice(["Oslo", "Paris"], 1000)})
answers = np.where((rows.age > 50) ^ (rng.random(1000) < 0.1), "leaves", "stays")
rows[rng.random(rows.shape) < 0.1] = None
pipeline = make_pipeline(
    ColumnTransformer(
        [
            ("numbers", SimpleImputer(), ["age"]),
            (
                "text",
                make_pipeline(
                    SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
                ),
                ["city"],
            ),
        ]
    ),
    LogisticRegression(C=1.0 + time.time() % 1),
).fit(rows, answers)
"""
_PORT = "8000"
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(
    r"^(?:\$ )?(?:\S*/|\w+=\S+ )?(?:mlctl|make|pip|docker|kubectl) ", re.MULTILINE
)
_EXITS = re.compile(r"exits (\d+)")
_NOT_RUN = re.compile(r"<!-- not run: \S[^>]+ -->")


@dataclass(frozen=True, slots=True)
class CommandBlock:
    """A block of commands and the exit code of its last one."""

    text: str
    exit_code: int = 0


def command_blocks(page: str) -> list[CommandBlock]:
    """Return the blocks that run, in order."""
    found = []
    for match in _BLOCK.finditer(page):
        if match["language"] == "sh":
            code = _EXITS.fullmatch(match["mark"] or "")
            found.append(CommandBlock(match["text"], int(code[1]) if code else 0))
    return found


def unexplained_blocks(page: str, *, runs: bool) -> list[str]:
    """Return the blocks with commands that neither run nor stand below a reason.

    `runs`: the page is one of RUNNABLE, so its blocks marked `sh` run.
    """
    return [
        match["text"]
        for match in _BLOCK.finditer(page)
        if match["language"] in ("", "bash", "console", *(() if runs else ("sh",)))
        and _COMMAND.search(match["text"])
        and not _NOT_RUN.search(page, 0, match.start("language"))
    ]


def script(blocks: list[CommandBlock], port: int) -> str:
    """Return one bash script that stops at the first unexpected exit code."""
    lines = ["PS4='+ ${SECONDS} s: '", "set -eux"]
    for block in blocks:
        text = block.text.replace(_PORT, str(port))
        if block.exit_code:
            lines += ["set +e", text, f'code=$?; set -e; test "$code" -eq {block.exit_code}']
        else:
            lines.append(text)
    return "\n".join(lines)


@contextlib.contextmanager
def running(commands: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `commands` with bash in `folder`; end what it left in the background."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLCTL_", "MLFLOW_", "BENTOML_"))
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MLCTL_HOME": str(folder / ".mlctl"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    with log.open("wb") as output:
        # A session of its own, so that the load in the background ends with it.
        process = subprocess.Popen(
            ["bash", "-c", commands],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            for home in folder.rglob(".mlctl"):
                subprocess.run(
                    [sys.executable, "-m", "mlctl.cli.main", "down", "shop"],
                    cwd=ROOT,
                    env={**environment, "MLCTL_HOME": str(home)},
                    capture_output=True,
                    check=False,
                )
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_page(name: str, folder: Path, timeout: float = 900.0) -> str | None:
    """Run the commands of the page `name` in `folder`; return None, or the end of its output."""
    page = (ROOT / name).read_text()
    (folder / "mlctl.toml").write_text(CONFIG)
    commands = script(command_blocks(page), free_ports(1)[0])
    if name == README:  # each of its blocks begins after a model was logged
        (code,) = re.findall(
            r"^```python\n(import mlflow\n.*?)^```$", page, re.MULTILINE | re.DOTALL
        )
        (folder / "log_model.py").write_text(README_MODEL + code)
        commands = commands.replace("mlctl optimize", "python log_model.py\nmlctl optimize")
    elif name != "docs/tutorial.md":
        commands = with_small_bundle(commands, folder)
    log = folder / "output.log"
    ended = f"its commands did not end in {timeout:.0f} s"
    with running(commands, folder, log) as process, contextlib.suppress(subprocess.TimeoutExpired):
        ended = f"exit code {process.wait(timeout)}"
    return (
        None if process.returncode == 0 else f"{log.read_text(errors='replace')[-6000:]}\n{ended}"
    )


def with_small_bundle(commands: str, folder: Path) -> str:
    """Return `commands` on a small bundle instead of a Bento, and write it and its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.support.bundles import make_bundle

    make_bundle(folder / "digits", features=64)
    (folder / "rows").mkdir()
    # One row of 200 is bad: fewer than `--max-errors`, so the job completes with a quarantine.
    rows = [*([float(row)] * 64 for row in range(199)), None]
    table = pa.table({"id": range(200), "x": pa.array(rows, pa.list_(pa.float64()))})
    pq.write_table(table, folder / "rows" / "rows.parquet")
    return re.sub(r"\bdigits:\w+", "digits", commands).replace('"image"', '"x"')


def main() -> None:
    """Run each page in a temporary folder; exit 1 if the commands of one fail."""
    failed = False
    for name in sys.argv[1:] or RUNNABLE:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mlctl-docs-") as folder:
            output = run_page(name, Path(folder))
        seconds = time.monotonic() - start
        print(f"{'failed' if output else 'ok':<7} {name} ({seconds:.0f} s)", flush=True)
        if output:
            failed = True
            print(output)
    sys.exit(failed)


if __name__ == "__main__":
    main()
