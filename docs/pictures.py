"""Write the documentation's pictures: `python -m docs.pictures`, or `make pictures`.

`mlctl demo` runs for them. `demo.svg` is a terminal with its output, from the promotion on;
`ui.png` and `report.png` are its pages in headless Chromium, which keep their last picture without.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from mlctl.core.ports import free_ports
from tests.support.browser import CHROMIUM, open_browser
from tests.support.wait import wait_until

MLCTL = (sys.executable, "-m", "mlctl.cli.main")
IMAGES = Path(__file__).parent / "images"
COLUMNS = 118
# Of the pictures of pages, in pixels: the page without what follows the gates, or the variants.
PAGE_WIDTH, UI_HEIGHT, REPORT_HEIGHT = 1085, 1312, 1480
# Between the heading of the promotion and the title of the summary.
FIRST, LAST = "5. ", "Variants, measured"
# What says little in a still picture: progress, the tables of variants, a runtime's own log.
_LEFT_OUT = re.compile(
    r"  \w[\w-]* (finished|cached)|Optimizing|Building|V2:|Serve it|Next:|digest "
    r"|  \S+: (passes|chosen)|Variant |(fp32|fp16|int8-static|int8-dynamic|int4) |.*onnxruntime:"
)
_ADDRESS = re.compile(r"http://\S+#\S+")
_HOME = re.compile(r"MLCTL_HOME=(\S+)")
_HAS_CHARTS = "document.querySelectorAll('.charts svg').length > 0"
_STATE = "document.getElementById('state')?.innerText ?? ''"
_IS_REPORT = "document.querySelectorAll('table').length > 0"
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
    shown = lines[start:]
    end = next(number for number, line in enumerate(shown) if line.startswith(LAST))
    return [line for line in shown[:end] if not _LEFT_OUT.match(line)]


def page_pictures(home: Path) -> None:
    """Write the pictures of the live page and of the report of the demo in `home`."""
    (port,) = free_ports(1)
    command = [*MLCTL, "ui", "shop", "--port", str(port)]
    environment = {**os.environ, "MLCTL_HOME": str(home)}
    report = next(home.rglob("report.html"))
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-pictures-") as profile,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as page,
        open_browser(Path(profile)) as browser,
    ):
        try:
            assert page.stdout is not None
            address = next(match[0] for match in map(_ADDRESS.search, page.stdout) if match)
            browser.look(PAGE_WIDTH)
            browser.open(address)
            wait_until(lambda: browser.evaluate(_HAS_CHARTS), what="the page")
            browser.open(f"http://127.0.0.1:{port}/deployments/shop?rollout=1")
            wait_until(lambda: "promoted" in browser.evaluate(_STATE), what="the promotion")
            size = {"x": 0, "y": 0, "width": PAGE_WIDTH}
            browser.picture(IMAGES / "ui.png", **size, height=UI_HEIGHT)
            browser.open(report.as_uri())
            wait_until(lambda: browser.evaluate(_IS_REPORT), what="the report")
            browser.picture(IMAGES / "report.png", **size, height=REPORT_HEIGHT)
        finally:
            page.terminate()


def main() -> None:
    """Run the demo and write its pictures to docs/images/."""
    done = subprocess.run(
        [*MLCTL, "demo", "--keep-running"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    kept = _HOME.search(done.stdout)
    assert kept is not None
    home = Path(kept[1])
    try:
        if CHROMIUM is None:
            print("ui.png and report.png stay: Chromium is not installed")
        else:
            page_pictures(home)
    finally:
        environment = {**os.environ, "MLCTL_HOME": str(home)}
        subprocess.run([*MLCTL, "down", "shop"], env=environment, check=True)
        shutil.rmtree(home)
    (IMAGES / "demo.svg").write_text(terminal_svg(demo_lines(done.stdout), "mlctl demo"))


if __name__ == "__main__":
    main()
