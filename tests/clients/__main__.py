"""Call three real servers by the published clients of others: `make clients`.

Each client runs in an environment of its own below .venv/clients, which is made from its list of
pins and kept until that changes. `results.json` has what works and what does not, from which
docs/protocol.md has its table. A run that differs from it fails; `--write` writes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from mlctl.bento.packaging import build_bento
from mlctl.bundle.verify import VerifiedBundle
from tests.clients.report import Servers
from tests.support.bundles import make_bundle, make_table_bundle
from tests.support.serving import Server, launch, running
from tests.support.tiny_llm import make_tiny_llm_bundle

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "results.json"
ENVIRONMENTS = ROOT / ".venv" / "clients"
# What calls by each module of `calls`: its list of pins, or none for mlctl's own environment.
CALLERS = {"of_triton": None, "of_python": None, "of_kserve": "kserve", "of_mlserver": "mlserver"}
CALLERS |= {"of_llm": "llm"}
LIMIT_SECONDS = 200
LABELS = {"mlctl.model": "clients", "mlctl.version": "1", "mlctl.source": "models:/clients/1"}


def main(*, write: bool) -> int:
    """Run all calls; return 1 if one fails or the results are not the known ones."""
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-clients-") as folder,
        ThreadPoolExecutor() as pool,
        ExitStack() as stack,
    ):
        pythons = {name: pool.submit(python_of, pins) for name, pins in CALLERS.items()}
        servers = stack.enter_context(serving(Path(folder)))
        found = [
            each
            for name, python in pythons.items()
            for each in call(name, python.result(), servers)
        ]
    failed = [each for each in found if each["error"] is not None]
    for each in failed:
        print(f"FAILED {each['client']}: {each['call']}: {each['error']}", file=sys.stderr)
    for each in found:
        del each["error"]
    print(f"{len(found) - len(failed)} of {len(found)} calls are as expected")
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if write and not failed:
        RESULTS.write_text(text)
    elif RESULTS.read_text() != text:
        print(f"{RESULTS.name} differs: run `make clients WRITE=--write`", file=sys.stderr)
        return 1
    return 1 if failed else 0


def python_of(pins: str | None) -> Path:
    """Return the interpreter of an environment, which is made where its pins have changed."""
    if pins is None:
        return Path(sys.executable)
    listed, folder = FOLDER / "pins" / f"{pins}.txt", ENVIRONMENTS / pins
    stamp, python = folder / ".pins", folder / "bin" / "python"
    digest = sha256(listed.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"Installing {pins} ...", flush=True)
        make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)]
        subprocess.run(make, check=True)
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        install += ["--disable-pip-version-check", "--requirement", str(listed)]
        # The pins are complete, so nothing else comes in. Few of their modules are ever imported.
        subprocess.run([*install, "--no-deps", "--no-compile"], check=True)
        stamp.write_text(digest)
    return python


@contextmanager
def serving(folder: Path) -> Iterator[Servers]:
    """Serve a model of one tensor, one of columns, and a language model."""
    home = folder / "bentoml"
    os.environ["BENTOML_HOME"] = str(home)
    bundles = (
        make_bundle(folder / "tiny"),
        make_table_bundle(folder / "table"),
        make_tiny_llm_bundle(folder / "llm"),
    )
    with ExitStack() as stack:
        launched = [start(bundle, folder, home) for bundle in bundles]
        tiny, table, llm = (stack.enter_context(running(each)) for each in launched)
        yield Servers(
            tiny=f"127.0.0.1:{tiny.port}",
            tiny_grpc=f"127.0.0.1:{tiny.grpc_port}",
            table=f"127.0.0.1:{table.port}",
            table_grpc=f"127.0.0.1:{table.grpc_port}",
            llm=f"127.0.0.1:{llm.port}",
        )


def start(bundle: VerifiedBundle, folder: Path, home: Path) -> Server:
    """Start a server of `bundle`."""
    built = build_bento(bundle, LABELS)
    return launch(built.tag, folder / f"{bundle.name}.log", cwd=folder, bento_home=home)


def call(name: str, python: Path, servers: Servers) -> list[dict[str, Any]]:
    """Run the calls of a module; return their results."""
    print(f"Calling by {name} ...", flush=True)
    variables = {**os.environ, "MLCTL_CLIENTS": json.dumps(asdict(servers))}
    done = subprocess.run(
        [str(python), "-m", f"tests.clients.calls.{name}"],
        cwd=ROOT, env=variables, check=False, capture_output=True, text=True,
        timeout=LIMIT_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client')]


if __name__ == "__main__":
    sys.exit(main(write="--write" in sys.argv[1:]))
