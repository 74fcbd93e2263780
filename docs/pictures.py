"""Write the documentation's pictures: `python -m docs.pictures`, or `make pictures`.

`demo.svg` is a terminal with the output of `mlctl demo`, which runs for it, from the promotion on.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 118
FIRST, LAST = "5. ", "$ mlctl down"
# What says little in a still picture: progress, the tables of variants, a runtime's own log.
_LEFT_OUT = re.compile(
    r"  \w[\w-]* (finished|cached)|Optimizing|Building|V2:|Serve it|Next:|digest "
    r"|  \S+: (passes|chosen)|Variant |(fp32|fp16|int8-static|int8-dynamic|int4) |.*onnxruntime:"
)
_TEMPORARY = re.compile(r"/\S*/mlctl-demo-\w+/")
_STYLES = (
    (re.compile(r"\$ .*"), "bold"),
    (re.compile(r"\d\. .*─"), "cyan"),
    (re.compile(r"[\d:]{8}  (promoted|champion).*"), "green"),
    (re.compile(r"Error:.*|[\d:]{8}  .*(rolled_back|rollback).*"), "red"),
)


def terminal_svg(lines: list[str], title: str) -> str:
    """Return a picture of a terminal that shows `lines`, without references to other hosts."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for line in lines:
        style = next((style for form, style in _STYLES if form.fullmatch(line)), "")
        console.print(Text(line.rstrip(), style), overflow="ellipsis", no_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id="terminal")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def demo_lines(output: str) -> list[str]:
    """Return the lines of the demo's output that the picture shows."""
    lines = [_TEMPORARY.sub("", line) for line in output.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith(FIRST))
    end = next(number for number, line in enumerate(lines) if line.startswith(LAST))
    return [line for line in lines[start:end] if not _LEFT_OUT.match(line)]


def main() -> None:
    """Run the demo and write its picture to docs/images/."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    (folder / "demo.svg").write_text(terminal_svg(demo_lines(done.stdout), "mlctl demo"))


if __name__ == "__main__":
    main()
