"""The demo's story, told with the commands that a user would type.

Seven steps on real handwritten digits: train, optimize, build, deploy, promote a better
version under live load, promote a broken one and watch it roll back, and sum up what was
measured. Every `mlctl` command runs as its own process, as it would in a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bundle.errors import ERROR_TABLE, ErrorCode, MlctlError
from examples.digits.client import ask_everyone
from examples.digits.data import load_split
from examples.digits.traffic import LoadThread, TrafficWindow, request_body
from registry.mlflow_catalog import MlflowCatalog
from services.runtime.bento_store import find_bento

DEPLOYMENT = "shop"
REQUESTS_PER_SECOND = 200.0
SETTLE_SECONDS = 1.0
# Short steps for a demo; the defaults of `mlctl promote` take minutes, as production should.
PROMOTE_OPTIONS = (
    *("--steps", "5,25,50,100", "--step-time", "1.5s", "--min-requests", "15"),
    *("--max-p99-ms", "500", "--max-error-rate", "0.02", "--bake-time", "2s"),
    *("--shadow-percent", "50", "--shadow-time", "3s"),
    # A good version is rolled back in at most one of a hundred demos.
    *("--alpha", "0.01", "--deadline", "120s"),
)


class Narrator(Protocol):
    """Who tells the story to the user."""

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
    """What was measured: variants of each version, traffic of each phase, the rollback.

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
    """Runs the steps with all state under `home`, so that a user's own registry is not touched."""

    def __init__(self, home: Path, port: int, narrator: Narrator, *, quiet: bool = False) -> None:
        """With `quiet` the commands' own results are not shown, only what they say on stderr."""
        self.home = home
        self._quiet = quiet
        self.port = port
        self._tell = narrator
        self._started = False
        self._variants: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._phases: list[StoryPhase] = []

    def run(self) -> Summary:
        """Tell the whole story; whatever fails raises, and `stop` ends what was started."""
        started = time.monotonic()
        self._tell.chapter("1. Train a small model and register it in MLflow")
        self._train("small")
        self._tell.chapter("2. Optimize it: every variant measured")
        first = self._optimize_and_build("small", "3. Build a Bento of the best one")
        self._tell.chapter("4. Deploy it behind Envoy, HTTP and gRPC on one port")
        self._mlctl("up", DEPLOYMENT, first, "--port", str(self.port))
        self._started = True
        self._compare_protocols()
        self._tell.chapter("5. Train a better version and promote it under live load")
        self._promote_better()
        self._tell.chapter("6. Promote one that fails for some inputs: it rolls back by itself")
        rollback = self._promote_broken()
        seconds = time.monotonic() - started
        return Summary(self._variants, self._phases, rollback, self._champion(), seconds)

    @property
    def infer_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2/models/digits/infer"

    def write_example(self) -> Path:
        """A file with the body of a V2 request that asks for one held-out digit."""
        path = self.home / "request.json"
        path.write_bytes(request_body(load_split()[1].images[0]))
        return path

    def stop(self) -> None:
        """Stop the deployment if it was started."""
        if self._started:
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
        self._tell.remark(f"{window.sent} requests were sent meanwhile, none failed.")

    def _promote_broken(self) -> Mapping[str, Any]:
        self._train("broken")
        tag = self._optimize_and_build("broken")
        code = ERROR_TABLE[ErrorCode.ROLLED_BACK].exit_code
        with self._traffic() as traffic:
            # A shadow would keep every user from it, and then there were nothing to see.
            told = (*PROMOTE_OPTIONS, "--shadow-percent", "0")
            self._mlctl("promote", DEPLOYMENT, tag, *told, expect=code)
            self._measure("promotion of the broken version", traffic)
            time.sleep(SETTLE_SECONDS)
            after = self._measure("after the rollback", traffic)
        _require_none_failed(after)
        self._tell.remark("That is what was meant to happen: the broken version is out again.")
        last: Mapping[str, Any] = self._json("history", DEPLOYMENT)["rollouts"][0]
        return last

    def _champion(self) -> str:
        """The optimized version with @champion, which only the good promotion may have moved."""
        with replaced_environment(self._environment):
            published = MlflowCatalog().find_optimized("digits-optimized@champion")
        serving = self._json("status", DEPLOYMENT)["deployments"][0]["live"]["digest"]
        if published.digest != serving:
            raise MlctlError(
                ErrorCode.INTERNAL, f"@champion is {published.uri}, which is not what serves"
            )
        return published.uri

    def _traffic(self) -> LoadThread:
        return LoadThread(self.infer_url, load_split()[1].images, REQUESTS_PER_SECOND)

    def _measure(self, name: str, traffic: LoadThread) -> TrafficWindow:
        window = traffic.cut()
        self._phases.append(StoryPhase.of(name, window))
        return window

    def _train(self, recipe: str) -> None:
        from examples.digits.train import train

        self._tell.command(f"python -m examples.digits.train --recipe {recipe}")
        # In this process, because importing torch and MLflow again takes most of the time.
        with replaced_environment(self._environment):
            trained = train(recipe, "candidate", self._data)
        self._tell.remark(
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
            self._tell.chapter(chapter)
        told = re.search(r"^(digits:[0-9a-f]+) ", self._mlctl("build", "digits"), re.MULTILINE)
        assert told is not None, "build says which Bento it made"
        tag = told[1]
        self._variants[name] = self._report(tag)["variants"]
        return tag

    def _report(self, tag: str) -> Mapping[str, Any]:
        """What was measured of the model in the Bento `tag`, as the registry keeps it."""
        from mlflow.artifacts import load_dict

        with replaced_environment(self._environment):
            published = MlflowCatalog().find_by_digest(find_bento(tag).labels["mlctl.digest"])
            report: dict[str, Any] = load_dict(f"runs:/{published.run_id}/report.json")
        return report

    def _compare_protocols(self) -> None:
        image = load_split()[1].images[:1]
        answers = ask_everyone("127.0.0.1", self.port, image)
        spread = max(float(np.abs(a - b).max()) for a in answers.values() for b in answers.values())
        self._tell.remark(
            f"{', '.join(answers)} answer the same: digit {int(answers['V2 HTTP'].argmax())}, "
            f"largest difference {spread:.1e}."
        )

    def _mlctl(self, *arguments: str, expect: int = 0) -> str:
        """Run a command, showing what it prints as it comes; returns all of it."""
        self._tell.command(" ".join(("mlctl", *arguments)))
        printed = []
        with subprocess.Popen(
            [*_MLCTL, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                self._tell.output(line.rstrip("\n"))
        if process.returncode != expect:
            raise MlctlError(
                ErrorCode.INTERNAL,
                f"`mlctl {arguments[0]}` exited with {process.returncode}, expected {expect}",
                "Its own message is above.",
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


_MLCTL = (sys.executable, "-m", "cli.main")


@contextlib.contextmanager
def replaced_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Let this process have exactly `values` as its environment for a while."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def environment(home: Path) -> dict[str, str]:
    """The environment of the story's commands: only `home` holds state."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MLFLOW_TRACKING_URI", "BENTOML_HOME")
    }
    return {**kept, "MLCTL_HOME": str(home)}
