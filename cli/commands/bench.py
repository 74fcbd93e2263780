"""`mlctl bench`: what a server answers, how fast, and with which settings it would do best."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.benches import columns_of, interruptible, row_of, show_tuning
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from loadtest.figures import Figures
    from loadtest.runs import LoadProfile, MeasuredServer, RequestShape


def _counts(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or max(counts) > 4096:
        raise click.BadParameter("write numbers from 1 to 4096, such as 1,16,64")
    return counts


@click.command()
@click.argument("target")
@click.option("--model", help="The model to ask, as TARGET/MODEL says it, too.")
@click.option("--protocol", type=click.Choice(("http", "grpc")), default="http", show_default=True)
@click.option(
    "--encoding",
    type=click.Choice(("binary", "json")),
    default="binary",
    show_default=True,
    help="How HTTP carries the tensors.",
)
@click.option(
    "--clients",
    default="1,16,64",
    show_default=True,
    callback=_counts,
    help="Closed loops of so many clients, one after the other.",
)
@click.option(
    "--rate", type=click.FloatRange(0, 1e6, min_open=True), help="An open loop: requests a second."
)
@click.option("--rows", type=click.IntRange(1, 65536), default=1, show_default=True)
@click.option(
    "--length",
    type=click.IntRange(1, 1 << 20),
    default=16,
    show_default=True,
    help="Size of dynamic dimensions of inputs that are drawn.",
)
@click.option("--seconds", type=click.FloatRange(0.2, 3600), default=5.0, show_default=True)
@click.option("--data", help="Rows to ask: a .npz file, or `golden` for a Bento's own.")
@click.option("--tune", is_flag=True, help="Search the settings that answer most within the goal.")
@click.option(
    "--max-p99-ms",
    type=click.FloatRange(0, 60_000, min_open=True),
    help="With --tune: the goal.",
)
@click.option(
    "--budget",
    type=click.FloatRange(10, 86_400),
    default=300.0,
    show_default=True,
    help="With --tune: seconds after which no trial is begun.",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path, resolve_path=True),
    help="With --tune: write the settings as environment lines.",
)
@reporting
def bench(
    output: CommandOutput,
    /,
    target: str,
    model: str | None,
    protocol: str,
    encoding: str,
    clients: tuple[int, ...],
    rate: float | None,
    rows: int,
    length: int,
    seconds: float,
    data: str | None,
    tune: bool,
    max_p99_ms: float | None,
    budget: float,
    write: Path | None,
) -> None:
    """Measure what TARGET answers.

    TARGET is the URL of a server of the V2 protocol, or a Bento (NAME:VERSION, or NAME for the
    newest), which is then served on free ports for as long as it takes. TARGET/MODEL is one of
    several models; of a Bento without it the first, or its pipeline. With --tune, which takes a
    Bento, real servers with different settings are tried; a search that was interrupted goes on
    where it stood.
    """
    from loadtest.runs import LoadProfile, Protocols, RequestShape

    target, model = _named(target, model)
    _check(target, data, tune=tune, goal=max_p99_ms, write=write)
    model = _known(target, model)
    asking = RequestShape(
        protocol=Protocols(protocol),
        binary=encoding == "binary",
        rows=rows,
        length=length,
        data=_data(target, data, model),
        model=model,
    )
    load = LoadProfile(seconds=seconds, clients=clients, rate=rate)
    with interruptible():
        if max_p99_ms is not None:
            _tune(output, target, asking, load, (max_p99_ms, budget), write)
        else:
            _bench(output, target, asking, load)


def _named(target: str, option: str | None) -> tuple[str, str | None]:
    """What is measured without its model, and the model."""
    from loadtest.naming import split_target

    target, model = split_target(target)
    if model is not None and option not in (None, model):
        raise click.UsageError(f"--model {option} and TARGET/{model} name different models")
    return target, model or option


def _known(target: str, model: str | None) -> str | None:
    """The model as a Bento has it; what a server has, it says itself."""
    from loadtest.naming import resolve_model
    from services.runtime.bento_store import find_bento

    return model if "://" in target else resolve_model(find_bento(target).source, model)


def _check(
    target: str, data: str | None, *, tune: bool, goal: float | None, write: Path | None
) -> None:
    is_url = "://" in target
    if tune != (goal is not None):
        raise click.UsageError("--tune and --max-p99-ms need each other")
    if write is not None and not tune:
        raise click.UsageError("--write needs --tune")
    if is_url and tune:
        raise click.UsageError("--tune takes a Bento, not a URL: it starts servers of its own")
    if is_url and data == "golden":
        raise click.UsageError("--data golden takes a Bento, not a URL")


def _data(target: str, data: str | None, model: str | None) -> Path | None:
    from bundle.manifest import GOLDEN_NAME
    from loadtest.naming import folder_of
    from services.runtime.bento_store import find_bento

    if data == "golden":
        return folder_of(find_bento(target).source, model) / GOLDEN_NAME
    return None if data is None else Path(data)


def _bench(output: CommandOutput, target: str, asking: RequestShape, load: LoadProfile) -> None:
    from loadtest.runs import bench as run

    with ExitStack() as stack:
        served = _served(output, target, asking, stack)
        tell = stack.enter_context(output.working())

        def show(figures: Figures) -> None:
            tell(f"{figures.per_second:,.0f} answers a second ...")

        tell("Warming up ...")
        model, found = run(served, asking, load, show)
    if output.as_json:
        runs = [figures.as_dict() for figures in found]
        told = {"model": model.name, "version": model.version, "runs": runs}
        output.document({**told, "ready_seconds": served.ready_seconds})
    else:
        title = f"{model.name} {model.version[:12]}, {asking.protocol}, rows {asking.rows}"
        output.table(columns_of(), [row_of(figures) for figures in found], title)


def _served(
    output: CommandOutput, target: str, asking: RequestShape, stack: ExitStack
) -> MeasuredServer:
    from bundle.tokens import token_of
    from loadtest.runs import MeasuredServer
    from loadtest.server import serving
    from loadtest.target import parse_url
    from rollout.drivers.local.ports import free_ports
    from services.runtime.bento_store import find_bento

    if "://" in target:
        address = parse_url(target, token_of(os.environ))
        return MeasuredServer(address, address if asking.protocol == "http" else None)
    found = find_bento(target)
    output.note(f"Serving {found.tag} to measure it ...")
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlctl-bench-"))
    http, grpc = free_ports(2)
    return stack.enter_context(
        serving(found.tag, (http, grpc), asking.protocol, Path(folder) / "log")
    )


def _tune(
    output: CommandOutput,
    target: str,
    asking: RequestShape,
    load: LoadProfile,
    limits: tuple[float, float],
    write: Path | None,
) -> None:
    from loadtest.tuning import Goal, Tuning
    from rollout.drivers.local.ports import free_ports
    from services.runtime.bento_store import find_bento

    def ports() -> tuple[int, int]:
        http, grpc = free_ports(2)
        return http, grpc

    found = find_bento(target)
    goal = Goal(limits[0], limits[1])
    with output.working() as tell:
        tuning = Tuning(found, asking, load, goal, ports, tell)
        tuned = tuning.run()
    if write is not None:
        write.write_text(tuned.environment_lines())
    show_tuning(output, found.tag, tuned, write)
