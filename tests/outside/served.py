"""A few models of the zoo as a user brings them: the commands optimize, build and serve.

One server has all of them. It is asked over its real port.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.ports import free_ports
from mlctl.core.quiet import quiet
from mlctl.registry.tracking import configure_tracking
from mlctl.services.online.http.declaration import ROUTE
from tests.outside.case import Case, Row, Source
from tests.outside.judge import Outcome, Verdict, compare
from tests.outside.paths import Answer, ask
from tests.outside.results import Key, key_of
from tests.support.command_line import Mlctl
from tests.support.wait import wait_until

_BENTO = "zoo"


def judge_served(cases: Sequence[Case], home: Path) -> Iterator[tuple[Key, Outcome]]:
    """Yield the outcome of each case; the process's home is `home`."""
    configure_tracking()
    mlctl = Mlctl(home)
    found = [(case, *_optimized(case, mlctl)) for case in cases]
    names = [case.registered_name for case in cases]
    built = mlctl.run("build", *names, "--name", _BENTO)
    assert built.returncode == 0, built.stderr
    with _serving(mlctl) as url:
        for case, source, bundle in found:
            route = f"{ROUTE}/{bundle.manifest.name}"
            rows = [*source.ordinary, *source.odd]
            answers = asyncio.run(_ask(url, route, bundle, rows, len(source.ordinary)))
            fault = next(compare(source, answers), None)
            verdict = Verdict.FAILED if fault else Verdict.ACCEPTED
            yield key_of(case), Outcome(verdict, f"served: {fault}" if fault else "")


def _optimized(case: Case, mlctl: Mlctl) -> tuple[Source, VerifiedBundle]:
    source = case.make()
    with quiet():
        source.log(case.registered_name)
    rows = str(source.write(mlctl.home))
    done = mlctl.json("optimize", case.registered_name, "--data", rows, "--recipes", "fp32")
    return source, verify(mlctl.home / "bundles" / done["digest"])


async def _ask(
    url: str, route: str, bundle: VerifiedBundle, rows: Sequence[Row], together: int
) -> dict[str, list[Answer]]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        return await ask(client, client, route, bundle, rows, together)


@contextmanager
def _serving(mlctl: Mlctl) -> Iterator[str]:
    """Run `mlctl serve`; yield its URL when it is ready."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with (mlctl.home / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            mlctl.command("serve", _BENTO, "--port", str(port)),
            env=mlctl.environment,
            cwd=mlctl.home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: process.poll() is not None or _is_ready(url), what="the server is ready")
        assert process.poll() is None, (mlctl.home / "serve.log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
