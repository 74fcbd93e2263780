"""Headless Chromium, steered over its DevTools pipe: pages, clicks, errors and pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page. `errors` are the console's errors and exceptions since it was last cleared."""

    def __init__(self, writer: int, reader: int) -> None:
        self._writer = writer
        self._reader = os.fdopen(reader, "rb", closefd=False)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window in CSS pixels, and the preferred colours."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, **clip: int) -> None:
        """Write the whole page as a PNG, or its part `clip`: `x`, `y`, `width` and `height`."""
        part = {"clip": {**clip, "scale": 1}} if clip else {}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, **part)
        path.write_bytes(base64.b64decode(found["data"]))

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            part = os.read(self._reader.fileno(), 1 << 16)
            assert part, "Chromium ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(found["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if found["type"] == "error":
                self.errors.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.errors.append(str(found["entry"]))
            case "Page.javascriptDialogOpening":
                self._accept()

    def _accept(self) -> None:
        """Press OK in a dialog, which blocks the page until then; the answer is not awaited."""
        message = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
        os.write(self._writer, json.dumps({**message, "sessionId": self._session}).encode() + b"\0")


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty `profile`; it and its children end with the block."""
    assert CHROMIUM is not None
    child_reads, writer = os.pipe()
    reader, child_writes = os.pipe()
    arguments = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
        "--remote-debugging-pipe", "about:blank",
    ]  # fmt: skip
    # The pipe is on the descriptors 3 and 4.
    script = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *arguments],
        pass_fds=(child_reads, child_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(child_reads)
    os.close(child_writes)
    try:
        yield Browser(writer, reader)
    finally:
        os.close(writer)  # Chromium ends with its pipe
        os.close(reader)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
