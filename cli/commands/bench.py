"""`mlctl bench`: the throughput and latency of a server, and a search for its best settings."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import Duration, option, takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.progress import interruptible

if TYPE_CHECKING:
    from mlctl.loadtest.figures import Figures
    from mlctl.loadtest.runs import LoadProfile, MeasuredServer, RequestShape
    from mlctl.loadtest.tuning import Tuned

_NONE = "-"
_STAGES = {
    "process_s": "process, imports, verification",
    "load_s": "load",
    "warm_up_s": "golden rows, warm-up",
    "ready_s": "ready",
    "first_answer_s": "first answer",
}


class _Counts(click.ParamType[tuple[int, ...]]):
    """Numbers of clients, separated by commas."""

    name = "counts"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            counts = tuple(int(each) for each in str(value).split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1 or max(counts) > 4096:
            self.fail("write numbers from 1 to 4096, such as 1,16,64", param, ctx)
        return counts


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How the load is made, and what is measured besides it."""

    model: str | None = option(
        help="Model to send requests to; the same as URL/MODEL or BENTO/MODEL."
    )
    protocol: str = option("http", click.Choice(("http", "grpc")), help="Protocol of the requests.")
    encoding: str = option(
        "binary", click.Choice(("binary", "json")), help="Form of the tensors in HTTP requests."
    )
    clients: tuple[int, ...] = option(
        "1,16,64", _Counts(), help="Numbers of closed-loop clients, measured one after the other."
    )
    rate: float | None = option(
        type=click.FloatRange(0, 1e6, min_open=True),
        help="Requests per second of an open loop, instead of --clients.",
    )
    rows: int = option(1, click.IntRange(1, 65536), help="Rows in each request.")
    length: int = option(
        16, click.IntRange(1, 1 << 20), help="Size of dynamic dimensions of generated inputs."
    )
    duration: float = option("5s", Duration("200ms", "1h"), help="How long to measure each load.")
    data: str | None = option(
        metavar="FILE|MODULE:FUNCTION|golden",
        help="Rows to send: data as for `mlctl optimize`, or a Bento's golden rows.  "
        "[default: generated]",
    )
    cold: int | None = option(
        type=click.IntRange(1, 1000),
        metavar="N",
        help="Start the Bento N times; measure the time to ready and to the first answer.",
    )
    tune: bool = option(help="Search the settings with the highest throughput within --max-p99-ms.")
    max_p99_ms: float | None = option(
        type=click.FloatRange(0, 60_000, min_open=True), help="With --tune: maximum p99 latency."
    )
    out: Path | None = option(
        type=click.Path(dir_okay=False, path_type=Path, resolve_path=True),
        help="With --tune: file to write the settings to, as environment lines.",
    )


@click.command()
@click.argument("target", metavar="URL|BENTO")
@takes(options=BenchOptions)
@reporting
def bench(output: CommandOutput, /, target: str, options: BenchOptions) -> None:
    """Measure throughput and latency of a server.

    Give the URL of a server that speaks the V2 protocol, or a BENTO (NAME:VERSION, or NAME for the
    newest), which is served on free ports while it is measured. URL/MODEL and BENTO/MODEL name one
    of several models; by default a Bento's first model, or its pipeline. --tune takes a Bento and
    tries servers with different settings. --cold measures starts instead of requests.

    \b
    Example:
      mlctl bench http://127.0.0.1:3000 --clients 1,16 --duration 10s
    """
    from mlctl.loadtest.runs import LoadProfile, Protocols, RequestShape

    target, model = _named(target, options.model)
    _check(target, options)
    model = _known(target, model)
    shape = RequestShape(
        protocol=Protocols(options.protocol),
        binary=options.encoding == "binary",
        rows=options.rows,
        length=options.length,
        data=_data(target, options.data, model),
        model=model,
    )
    load = LoadProfile(seconds=options.duration, clients=options.clients, rate=options.rate)
    with interruptible():
        if options.cold is not None:
            _cold(output, target, shape, options.cold)
        elif options.max_p99_ms is not None:
            _tune(output, target, shape, load, options.max_p99_ms, options.out)
        else:
            _bench(output, target, shape, load)


def _named(target: str, option: str | None) -> tuple[str, str | None]:
    """Split the argument into what to measure, and its model."""
    from mlctl.loadtest.naming import split_target

    target, model = split_target(target)
    if model is not None and option not in (None, model):
        raise click.UsageError(f"--model {option} and {target}/{model} name different models")
    return target, model or option


def _known(target: str, model: str | None) -> str | None:
    """Return the model's name in a Bento; a server lists its own models."""
    from mlctl.loadtest.naming import resolve_model
    from mlctl.services.layout.bento_store import find_bento

    return model if "://" in target else resolve_model(find_bento(target).source, model)


def _check(target: str, options: BenchOptions) -> None:
    is_url = "://" in target
    if options.cold is not None and (is_url or options.tune):
        raise click.UsageError("--cold takes a Bento, and no --tune: it starts servers of its own")
    if options.tune != (options.max_p99_ms is not None):
        raise click.UsageError("--tune and --max-p99-ms need each other")
    if options.out is not None and not options.tune:
        raise click.UsageError("--out needs --tune")
    if is_url and options.tune:
        raise click.UsageError("--tune takes a Bento, not a URL: it starts its own servers")
    if is_url and options.data == "golden":
        raise click.UsageError("--data golden takes a Bento, not a URL")


def _data(target: str, data: str | None, model: str | None) -> str | Path | None:
    from mlctl.bundle.manifest import GOLDEN_NAME
    from mlctl.loadtest.naming import folder_of
    from mlctl.services.layout.bento_store import find_bento

    if data == "golden":
        return folder_of(find_bento(target).source, model) / GOLDEN_NAME
    return data


def _bench(output: CommandOutput, target: str, shape: RequestShape, load: LoadProfile) -> None:
    from mlctl.loadtest.runs import bench as run

    with _served(output, target, shape) as served, output.working() as report:

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
    output: CommandOutput, target: str, shape: RequestShape
) -> AbstractContextManager[MeasuredServer]:
    from mlctl.core.tokens import token_of
    from mlctl.loadtest.runs import MeasuredServer
    from mlctl.loadtest.server import serving
    from mlctl.loadtest.target import parse_url
    from mlctl.services.layout.bento_store import find_bento

    if "://" in target:
        address = parse_url(target, token_of(os.environ))
        return nullcontext(MeasuredServer(address, address if shape.protocol == "http" else None))
    tag = find_bento(target).tag
    output.note(f"Serving {tag} to measure it ...")
    return serving(tag, shape.protocol)


def _cold(output: CommandOutput, target: str, shape: RequestShape, count: int) -> None:
    from mlctl.loadtest.cold import ColdStart, as_document, cold_starts, summary
    from mlctl.services.layout.bento_store import find_bento

    tag = find_bento(target).tag
    starts: list[ColdStart] = []
    with output.working() as report:
        report(f"Start 1 of {count} ...")
        for start in cold_starts(tag, shape, count):
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
    max_p99_ms: float,
    write: Path | None,
) -> None:
    from mlctl.loadtest.tuning import tune
    from mlctl.services.layout.bento_store import find_bento

    found = find_bento(target)
    with output.working() as report:
        tuned = tune(found, shape, load, max_p99_ms, report)
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
    names = tuple(dict.fromkeys(name for each in tuned.trials for name in each.environment))
    rows = [
        (*(trial.environment.get(name, _NONE) for name in names), *row_of(trial.best))
        for trial in tuned.trials
    ]
    columns = (*(f"{name.removeprefix('MLCTL_').lower()}>" for name in names), *columns_of())
    output.table(columns, rows, f"{bento}: p99 at most {tuned.max_p99_ms:g} ms")
    if not tuned.best.fits:
        output.note("No settings meet --max-p99-ms; these come nearest.")
    for line in tuned.environment_lines().splitlines():
        output.line(line)
    if written is not None:
        output.note(f"Written to {written}: set -a; . {written}; mlctl serve {bento}")


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
