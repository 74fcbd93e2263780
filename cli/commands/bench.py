"""`mlctl bench`: the throughput and latency of a server, and a search for its best settings."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import Duration
from cli.output import CommandOutput, reporting
from cli.progress import interruptible

if TYPE_CHECKING:
    from loadtest.figures import Figures
    from loadtest.runs import LoadProfile, MeasuredServer, RequestShape
    from loadtest.tuning import Tuned

_NONE = "-"
_STAGES = {
    "process_s": "process, imports, verification",
    "load_s": "load",
    "warm_up_s": "golden rows, warm-up",
    "ready_s": "ready",
    "first_answer_s": "first answer",
}


def _counts(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or max(counts) > 4096:
        raise click.BadParameter("write numbers from 1 to 4096, such as 1,16,64")
    return counts


@click.command()
@click.argument("target", metavar="URL|BENTO")
@click.option("--model", help="Model to send requests to; the same as URL/MODEL or BENTO/MODEL.")
@click.option(
    "--protocol",
    type=click.Choice(("http", "grpc")),
    default="http",
    show_default=True,
    help="Protocol of the requests.",
)
@click.option(
    "--encoding",
    type=click.Choice(("binary", "json")),
    default="binary",
    show_default=True,
    help="Form of the tensors in HTTP requests.",
)
@click.option(
    "--clients",
    default="1,16,64",
    show_default=True,
    callback=_counts,
    help="Numbers of closed-loop clients, measured one after the other.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Requests per second of an open loop, instead of --clients.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 65536),
    default=1,
    show_default=True,
    help="Rows in each request.",
)
@click.option(
    "--length",
    type=click.IntRange(1, 1 << 20),
    default=16,
    show_default=True,
    help="Size of dynamic dimensions of generated inputs.",
)
@click.option(
    "--duration",
    "seconds",
    type=Duration("200ms", "1h"),
    default="5s",
    show_default=True,
    help="How long to measure each load.",
)
@click.option(
    "--data",
    metavar="FILE|MODULE:FUNCTION|golden",
    help="Rows to send: data as for `mlctl optimize`, or a Bento's golden rows.  "
    "[default: generated]",
)
@click.option(
    "--cold",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Start the Bento N times; measure the time to ready and to the first answer.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="Search the settings with the highest throughput within --max-p99-ms.",
)
@click.option(
    "--max-p99-ms",
    type=click.FloatRange(0, 60_000, min_open=True),
    help="With --tune: maximum p99 latency.",
)
@click.option(
    "--budget",
    type=Duration("10s", "1d"),
    default="5m",
    show_default=True,
    help="With --tune: time after which no trial starts.",
)
@click.option(
    "--out",
    "write",
    type=click.Path(dir_okay=False, path_type=Path, resolve_path=True),
    help="With --tune: file to write the settings to, as environment lines.",
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
    cold: int | None,
    tune: bool,
    max_p99_ms: float | None,
    budget: float,
    write: Path | None,
) -> None:
    """Measure throughput and latency of a server.

    Give the URL of a server that speaks the V2 protocol, or a BENTO (NAME:VERSION, or NAME for the
    newest), which is served on free ports while it is measured. URL/MODEL and BENTO/MODEL name one
    of several models; by default a Bento's first model, or its pipeline. --tune takes a Bento and
    tries servers with different settings; an interrupted search continues where it stopped. --cold
    measures starts instead of requests.

    \b
    Example:
      mlctl bench http://127.0.0.1:3000 --clients 1,16 --duration 10s
    """
    from loadtest.runs import LoadProfile, Protocols, RequestShape

    target, model = _named(target, model)
    _check(target, data, cold=cold, tune=tune, goal=max_p99_ms, write=write)
    model = _known(target, model)
    shape = RequestShape(
        protocol=Protocols(protocol),
        binary=encoding == "binary",
        rows=rows,
        length=length,
        data=_data(target, data, model),
        model=model,
    )
    load = LoadProfile(seconds=seconds, clients=clients, rate=rate)
    with interruptible():
        if cold is not None:
            _cold(output, target, shape, cold)
        elif max_p99_ms is not None:
            _tune(output, target, shape, load, (max_p99_ms, budget), write)
        else:
            _bench(output, target, shape, load)


def _named(target: str, option: str | None) -> tuple[str, str | None]:
    """Split the argument into what to measure, and its model."""
    from loadtest.naming import split_target

    target, model = split_target(target)
    if model is not None and option not in (None, model):
        raise click.UsageError(f"--model {option} and {target}/{model} name different models")
    return target, model or option


def _known(target: str, model: str | None) -> str | None:
    """Return the model's name in a Bento; a server lists its own models."""
    from loadtest.naming import resolve_model
    from services.runtime.bento_store import find_bento

    return model if "://" in target else resolve_model(find_bento(target).source, model)


def _check(
    target: str,
    data: str | None,
    *,
    cold: int | None,
    tune: bool,
    goal: float | None,
    write: Path | None,
) -> None:
    is_url = "://" in target
    if cold is not None and (is_url or tune):
        raise click.UsageError("--cold takes a Bento, and no --tune: it starts servers of its own")
    if tune != (goal is not None):
        raise click.UsageError("--tune and --max-p99-ms need each other")
    if write is not None and not tune:
        raise click.UsageError("--out needs --tune")
    if is_url and tune:
        raise click.UsageError("--tune takes a Bento, not a URL: it starts its own servers")
    if is_url and data == "golden":
        raise click.UsageError("--data golden takes a Bento, not a URL")


def _data(target: str, data: str | None, model: str | None) -> str | Path | None:
    from bundle.manifest import GOLDEN_NAME
    from loadtest.naming import folder_of
    from services.runtime.bento_store import find_bento

    if data == "golden":
        return folder_of(find_bento(target).source, model) / GOLDEN_NAME
    return data


def _bench(output: CommandOutput, target: str, shape: RequestShape, load: LoadProfile) -> None:
    from loadtest.runs import bench as run

    with ExitStack() as stack:
        served = _served(output, target, shape, stack)
        report = stack.enter_context(output.working())

        def show(figures: Figures) -> None:
            report(f"{figures.per_second:,.0f} answers a second ...")

        report("Warming up ...")
        model, found = run(served, shape, load, show)
    if output.as_json:
        runs = [figures.as_dict() for figures in found]
        document = {"model": model.name, "version": model.version, "runs": runs}
        output.document({**document, "ready_seconds": served.ready_seconds})
    else:
        title = f"{model.name} {model.version[:12]}, {shape.protocol}, rows {shape.rows}"
        output.table(columns_of(), [row_of(figures) for figures in found], title)


def _served(
    output: CommandOutput, target: str, shape: RequestShape, stack: ExitStack
) -> MeasuredServer:
    from bundle.tokens import token_of
    from loadtest.runs import MeasuredServer
    from loadtest.server import serving
    from loadtest.target import parse_url
    from rollout.drivers.local.ports import free_ports
    from services.runtime.bento_store import find_bento

    if "://" in target:
        address = parse_url(target, token_of(os.environ))
        return MeasuredServer(address, address if shape.protocol == "http" else None)
    found = find_bento(target)
    output.note(f"Serving {found.tag} to measure it ...")
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlctl-bench-"))
    http, grpc = free_ports(2)
    return stack.enter_context(
        serving(found.tag, (http, grpc), shape.protocol, Path(folder) / "log")
    )


def _cold(output: CommandOutput, target: str, shape: RequestShape, count: int) -> None:
    from loadtest.cold import ColdStart, as_document, cold_starts, summary
    from loadtest.server import serving
    from rollout.drivers.local.ports import free_ports
    from services.runtime.bento_store import find_bento

    tag = find_bento(target).tag

    def serve(log: Path) -> AbstractContextManager[MeasuredServer]:
        http, grpc = free_ports(2)
        return serving(tag, (http, grpc), shape.protocol, log)

    starts: list[ColdStart] = []
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder, output.working() as report:
        report(f"Start 1 of {count} ...")
        for start in cold_starts(serve, shape, count, Path(folder)):
            starts.append(start)
            report(f"Start {len(starts) + 1} of {count} ...")
    if output.as_json:
        output.document(as_document(tag, starts))
        return
    rows = [
        (_STAGES[name], *(f"{value:.2f}" for value in found.values()))
        for name, found in summary(starts).items()
    ]
    output.table(("Stage", "p50 s>", "p90 s>", "max s>"), rows, f"{tag}: {count} cold starts")


def _tune(
    output: CommandOutput,
    target: str,
    shape: RequestShape,
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
    with output.working() as report:
        tuning = Tuning(found, shape, load, goal, ports, report)
        tuned = tuning.run()
    if write is not None:
        write.write_text(tuned.environment_lines())
    show_tuning(output, found.tag, tuned, write)


def columns_of() -> tuple[str, ...]:
    """Return the columns of a table of figures."""
    return (
        "Load>", "answers/s>", "p50 ms>", "p95 ms>", "p99 ms>", "p99.9 ms>", "queue ms>",
        "infer ms>", "rows/batch>", "per CPU s>", "failed",
    )  # fmt: skip


def row_of(figures: Figures) -> tuple[str, ...]:
    """Return one row of that table."""
    load = f"{figures.rate:g}/s" if figures.rate is not None else f"{figures.clients}"
    times = (
        figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.p999_ms, figures.queue_ms,
        figures.infer_ms,
    )  # fmt: skip
    return (
        load,
        f"{figures.per_second:,.0f}",
        *(_number(each, 3) for each in times),
        _number(figures.rows_per_batch, 1),
        _number(figures.per_cpu_second, 0),
        ", ".join(f"{name}: {count}" for name, count in figures.errors.items()) or _NONE,
    )


def show_tuning(output: CommandOutput, bento: str, tuned: Tuned, written: Path | None) -> None:
    """Print the trials of a search, the best settings, and where they were written."""
    if output.as_json:
        output.document({"bento": bento, **tuned.as_dict()})
        return
    names = tuple(tuned.environment)
    rows = [
        (*(trial.environment.get(name, _NONE) for name in names), *row_of(trial.best))
        for trial in tuned.trials
    ]
    columns = (*(f"{name.removeprefix('MLCTL_').lower()}>" for name in names), *columns_of())
    output.table(columns, rows, f"{bento}: p99 at most {tuned.max_p99_ms:g} ms")
    if not tuned.complete:
        output.note(
            "--budget ended before the search was complete: run the same command again to continue."
        )
    if not tuned.fits:
        output.note("No settings meet --max-p99-ms; these come nearest.")
    for line in tuned.environment_lines().splitlines():
        output.line(line)
    if written is not None:
        output.note(f"Written to {written}: set -a; . {written}; mlctl serve {bento}")


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
