"""The demo: a story in the commands that a user would type.

Seven steps on real handwritten digits: train, optimize, build, deploy, promote a better
version under live load, promote a broken one and watch it roll back, and summarize the
measurements. Every `mlctl` command runs as a separate process, as in a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.examples.digits.client import infer_with_all
from mlctl.examples.digits.data import load_split
from mlctl.examples.digits.traffic import LoadThread, TrafficWindow, request_body
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.services.layout.bento_store import find_bento

DEPLOYMENT = "shop"
REQUESTS_PER_SECOND = 200.0
SETTLE_SECONDS = 1.0
# Short steps for a demo; the defaults of `mlctl promote` take minutes, as in production.
PROMOTE_OPTIONS = (
    *("--steps", "5,25,50,100", "--step-time", "1.5s", "--min-requests", "15"),
    *("--max-p99-ms", "500", "--max-error-rate", "0.02", "--bake-time", "2s"),
    *("--burst", "1s"),
    *("--shadow-percent", "50", "--shadow-time", "3s"),
    # At most 1 % of demos roll back a good version.
    *("--alpha", "0.01", "--deadline", "120s"),
)


class Narrator(Protocol):
    """Prints the story for the user."""

    def chapter(self, text: str) -> None: ...

    def command(self, line: str) -> None: ...

    def output(self, line: str) -> None: ...

    def remark(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StoryPhase:
    """The traffic of one phase: requests sent and failed, p50 and p99 in milliseconds."""

    name: str
    sent: int
    failed: int
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, name: str, window: TrafficWindow) -> StoryPhase:
        return cls(
            name,
            window.sent,
            window.failed,
            window.percentile_ms(50),
            window.percentile_ms(99),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The measurements: variants of each version, traffic of each phase, the rollback.

    `champion` is the optimized version that holds @champion at the end.
    """

    variants: Mapping[str, Sequence[Mapping[str, Any]]]
    phases: Sequence[StoryPhase]
    rollback: Mapping[str, Any]
    champion: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Story:
    """Runs the steps with all state under `home`; the user's own registry stays untouched."""

    def __init__(
        self, home: Path, port: int | None, narrator: Narrator, *, quiet: bool = False
    ) -> None:
        """Without `port` the deployment gets a free one. With `quiet` commands show only stderr."""
        self.home = home
        self._quiet = quiet
        self.port = port or 0
        self._narrator = narrator
        self._started = False
        self._variants: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._phases: list[StoryPhase] = []

    def run(self) -> Summary:
        """Run the whole story; a failing step raises, and `stop` ends the deployment."""
        started = time.monotonic()
        self._narrator.chapter("1. Train a small model and register it in MLflow")
        self._train("small")
        self._narrator.chapter("2. Optimize it: every variant measured")
        first = self._optimize_and_build("small", "3. Build a Bento of the best one")
        self._narrator.chapter("4. Deploy it behind Envoy, HTTP and gRPC on one port")
        self._started = True  # a start that is interrupted may leave something as well
        # Not earlier: another process could take it while the model is trained.
        self.port = self.port or free_ports(1)[0]
        self._mlctl("up", DEPLOYMENT, first, "--port", str(self.port))
        self._compare_protocols()
        self._narrator.chapter("5. Train a better version and promote it under live load")
        self._promote_better()
        self._narrator.chapter("6. Promote one that fails for some inputs: it rolls back by itself")
        rollback = self._promote_broken()
        seconds = time.monotonic() - started
        return Summary(self._variants, self._phases, rollback, self._champion(), seconds)

    @property
    def infer_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2/models/digits/infer"

    def write_example(self) -> Path:
        """Write the body of a V2 request for one held-out digit to a file."""
        path = self.home / "request.json"
        path.write_bytes(request_body(load_split()[1].images[0]))
        return path

    def stop(self) -> None:
        """Stop the deployment if it was started."""
        if self._started and self._json("status")["deployments"]:
            self._mlctl("down", DEPLOYMENT)
        self._started = False

    def _promote_better(self) -> None:
        self._train("wide")
        tag = self._optimize_and_build("wide")
        with self._traffic() as traffic:
            time.sleep(SETTLE_SECONDS)
            self._measure("before the promotion", traffic)
            self._mlctl("promote", DEPLOYMENT, tag, *PROMOTE_OPTIONS)
            window = self._measure("promotion of the better version", traffic)
        _require_none_failed(window)
        self._narrator.remark(f"{window.sent} requests were sent meanwhile, none failed.")

    def _promote_broken(self) -> Mapping[str, Any]:
        self._train("broken")
        tag = self._optimize_and_build("broken")
        code = ERROR_TABLE[ErrorCode.ROLLED_BACK].exit_code
        with self._traffic() as traffic:
            # A shadow would find the fault before any user, and there would be nothing to see.
            options = (*PROMOTE_OPTIONS, "--shadow-percent", "0")
            self._mlctl("promote", DEPLOYMENT, tag, *options, expect=code)
            self._measure("promotion of the broken version", traffic)
            time.sleep(SETTLE_SECONDS)
            after = self._measure("after the rollback", traffic)
        _require_none_failed(after)
        self._narrator.remark(
            "This rollback is intended: the broken version serves no traffic any more."
        )
        last: Mapping[str, Any] = self._json("history", DEPLOYMENT)["rollouts"][0]
        return last

    def _champion(self) -> str:
        """Return the version with @champion, which only the good promotion may have moved."""
        with replaced_environment(self._environment):
            published = MlflowCatalog().find_optimized("digits-optimized@champion")
        serving = self._json("status", DEPLOYMENT)["deployments"][0]["live"]["digest"]
        if published.digest != serving:
            raise MlctlError(
                ErrorCode.INTERNAL, f"@champion is {published.uri}, which does not serve"
            )
        return published.uri

    def _traffic(self) -> LoadThread:
        return LoadThread(self.infer_url, load_split()[1].images, REQUESTS_PER_SECOND)

    def _measure(self, name: str, traffic: LoadThread) -> TrafficWindow:
        window = traffic.cut()
        self._phases.append(StoryPhase.of(name, window))
        return window

    def _train(self, recipe: str) -> None:
        from mlctl.examples.digits.train import train

        self._narrator.command(f"python -m mlctl.examples.digits.train --recipe {recipe}")
        # In this process: importing torch and MLflow again would take most of the time.
        with replaced_environment(self._environment):
            trained = train(recipe, "candidate", self._data)
        self._narrator.remark(
            f"models:/digits/{trained.version} @candidate: accuracy {trained.accuracy:.4f} "
            "on the held-out rows"
        )

    @property
    def _data(self) -> Path:
        return self.home / "eval.npz"

    def _optimize_and_build(self, name: str, chapter: str | None = None) -> str:
        goals = ("--data", str(self._data), "--max-accuracy-drop", "0.01")
        self._mlctl("optimize", "models:/digits@candidate", *goals)
        if chapter:
            self._narrator.chapter(chapter)
        built = re.search(r"^(digits:[0-9a-f]+) ", self._mlctl("build", "digits"), re.MULTILINE)
        assert built is not None, "build prints the tag of its Bento"
        tag = built[1]
        self._variants[name] = self._report(tag)["variants"]
        return tag

    def _report(self, tag: str) -> Mapping[str, Any]:
        """Return the report of the model in the Bento `tag` from the registry."""
        from mlflow.artifacts import load_dict

        with replaced_environment(self._environment):
            published = MlflowCatalog().find_by_digest(find_bento(tag).labels["mlctl.digest"])
            report: dict[str, Any] = load_dict(f"runs:/{published.run_id}/report.json")
        return report

    def _compare_protocols(self) -> None:
        image = load_split()[1].images[:1]
        answers = infer_with_all("127.0.0.1", self.port, image)
        spread = max(float(np.abs(a - b).max()) for a in answers.values() for b in answers.values())
        self._narrator.remark(
            f"{', '.join(answers)} answer the same: digit {int(answers['V2 HTTP'].argmax())}, "
            f"largest difference {spread:.1e}."
        )

    def _mlctl(self, *arguments: str, expect: int = 0) -> str:
        """Run a command, show its output line by line, and return all of it."""
        self._narrator.command(" ".join(("mlctl", *arguments)))
        printed = []
        with subprocess.Popen(
            [*_MLCTL, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    printed.append(line)
                    self._narrator.output(line.rstrip("\n"))
            except KeyboardInterrupt:
                # SIGTERM, unlike Ctrl-C in a terminal, has reached this process alone.
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
        if process.returncode != expect:
            raise MlctlError(
                ErrorCode.INTERNAL,
                f"`mlctl {arguments[0]}` exited with {process.returncode}, expected {expect}",
                "Its error message is above.",
            )
        return "".join(printed)

    def _json(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*_MLCTL, *arguments, "--json"],
            env=self._environment,
            check=True,
            stdout=subprocess.PIPE,
        )
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    @property
    def _environment(self) -> dict[str, str]:
        return environment(self.home)


def _require_none_failed(window: TrafficWindow) -> None:
    if window.failed:
        raise MlctlError(
            ErrorCode.INTERNAL, f"{window.failed} of {window.sent} requests failed under load"
        )


_MLCTL = (sys.executable, "-m", "mlctl.cli.main")


@contextlib.contextmanager
def replaced_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process with `values` while the block runs."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of the story's commands: all state is under `home`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MLFLOW_TRACKING_URI", "BENTOML_HOME")
    }
    return {**kept, "MLCTL_HOME": str(home)}
