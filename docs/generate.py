"""Write the pages that are generated from the code: `python -m docs.generate`.

A page is generated whole, or between `<!-- generated: NAME -->` and `<!-- end -->`. Tests compare
the committed pages with what this writes, so they cannot go stale.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import click
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

import mlctl
from docs.house import layers_text, rooms_table
from docs.zoo import zoo_tables
from mlctl import chain
from mlctl.bundle.manifest import manifest_json_schema
from mlctl.cli.main import cli
from mlctl.core.errors import ERROR_TABLE
from mlctl.core.variables import OTHER_VARIABLES, PREFIX
from mlctl.rollout.client.spec_file import spec_schema
from mlctl.rollout.daemon.reporting.telemetry import METRICS
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.services.model.settings import RuntimeSettings
from mlctl.services.online.metrics.counts import Metrics
from mlctl.services.online.metrics.exposition import CounterSink
from mlctl.services.online.metrics.generation import GenerationMetrics
from mlctl.services.online.metrics.triton import TRITON_NAMES
from mlctl.services.online.models.precomputed_metrics import PrecomputedMetrics
from mlctl.services.online.observability.observer import DROPPED, SAMPLED
from mlctl.services.online.observability.settings import ObserveSettings
from mlctl.services.online.security.settings import SecureSettings
from mlctl.services.online.settings import ServerSettings
from mlctl.services.precomputed.settings import PrecomputedSettings, StoreSettings
from mlctl.services.stream.metrics import StreamMetrics

HELP_WIDTH = 96
FOLDER = Path(__file__).parent
_CLIENTS = FOLDER.parent / "tests" / "clients" / "results.json"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# The settings of servers in the order of the page, and what reads them.
_SETTINGS: Mapping[type[BaseModel], str] = {
    RuntimeSettings: "servers, batch jobs, streams",
    ServerSettings: "servers",
    SecureSettings: "servers",
    ObserveSettings: "servers",
    StoreSettings: "servers, `mlctl precomputed`, batch jobs",
    PrecomputedSettings: "servers",
}


def error_table_markdown() -> str:
    """The page `docs/errors.md`: every error with its statuses and hint."""
    rows = [
        f"| `{code.value}` | {spec.meaning} | {spec.hint} | {spec.exit_code} | {spec.http} "
        f"| {spec.grpc} |"
        for code, spec in ERROR_TABLE.items()
    ]
    head = [
        "# Errors",
        "",
        "Every error has a stable code. Commands print it with `--json` and exit with its exit",
        "code; the HTTP and gRPC APIs answer with its statuses. A command that succeeds exits 0.",
        "",
        "| Code | Meaning | What to do | Exit code | HTTP | gRPC |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def manifest_schema_text() -> str:
    """The file `docs/manifest.schema.json`."""
    return json.dumps(manifest_json_schema(), indent=2, ensure_ascii=False) + "\n"


def rollout_schema_text() -> str:
    """The file `docs/rollout.schema.json`, with the descriptions of the class's docstring."""
    schema = spec_schema()
    for name, text in described_fields(RolloutSpec, schema["properties"]).items():
        schema["properties"][name]["description"] = text
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def described_fields(cls: type, names: Iterable[str]) -> dict[str, str]:
    """Return the descriptions of fields in the part `Attributes:` of a class's docstring.

    An entry is `NAME: TEXT` or `NAME, NAME: TEXT`; KeyError names a field without an entry.
    """
    text = " ".join(inspect.getdoc(cls).partition("Attributes:")[2].split())  # type: ignore[union-attr]
    name = rf"(?:{'|'.join(names)})"
    parts = re.split(rf"(?:^|(?<=[.;]) )({name}(?:, {name})*): ", text)
    found = {
        each: description.strip()
        for of, description in zip(parts[1::2], parts[2::2], strict=True)
        for each in of.split(", ")
    }
    return {each: found[each] for each in names}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def settings_table() -> str:
    """Every variable with its default, limits, meaning and readers."""
    rows = []
    for cls, readers in _SETTINGS.items():
        own = {
            name: cls.model_fields[name] for name in cls.__annotations__ if name != "model_config"
        }
        texts = described_fields(cls, own)
        for name, field in own.items():
            default = field.get_default(call_default_factory=True)
            if isinstance(default, float | bool):
                default = f"{default:.12g}"
            shown = "unset" if default in (None, ()) else f"`{default}`"
            limits = _limits(get_type_hints(cls, include_extras=True)[name])
            variable = f"`{PREFIX}{name.upper()}`"
            rows.append((variable, shown, limits, texts[name].rstrip("."), readers))
    others = ((f"`{name}`", "unset", "", text, "") for name, text in OTHER_VARIABLES.items())
    return _table(("Variable", "Default", "Limits", "Meaning", "Read by"), [*rows, *others])


def _limits(annotation: Any) -> str:
    """Return the bounds of a number in its annotation, empty without."""
    text = repr(annotation)
    least, more, most = (re.search(rf"\b{of}=([\d.]+)", text) for of in ("ge", "gt", "le"))
    low = least[1] if least else f"over {more[1]}" if more else ""
    if most:
        return f"{low} to {most[1]}"
    return f"{low} or more" if least else low


def metrics_table(fill: Callable[[CollectorRegistry], object]) -> str:
    """The metrics that `fill` puts into a registry, with their help texts."""
    registry = CollectorRegistry()
    fill(registry)
    return _metric_rows((each.name, each.type, each.documentation) for each in registry.collect())


def _metric_rows(metrics: Iterable[tuple[str, str, str]]) -> str:
    rows = (_metric_row(name, kind, text.rstrip(".")) for name, kind, text in metrics)
    return _table(("Metric", "Type", "Meaning"), rows)


def _metric_row(name: str, kind: str, text: str) -> tuple[str, str, str]:
    if name in TRITON_NAMES:  # counters on /metrics, without the usual end of their names
        return f"`{name}`", "counter", text
    return f"`{name}{'_total' * (kind == 'counter')}`", kind, text


def _server_metrics(registry: CollectorRegistry) -> None:
    Metrics("model", registry)
    PrecomputedMetrics("model", registry)
    for name, text in (*DROPPED, SAMPLED):
        CounterSink(name, text, {"model": "model"}, (), registry)


def python_reference() -> str:
    """What `mlctl` and `mlctl.chain` export: signatures, docstrings and the fields of values."""
    parts = []
    named = {name: getattr(mlctl, name) for name in mlctl.__all__ if name != "ErrorCode"}
    named |= {f"chain.{name}": getattr(chain, name) for name in chain.__all__}
    for name, thing in sorted(named.items(), key=lambda each: each[0].lower()):
        if is_dataclass(thing):
            parts += [f"### {name}", _summary(thing), _fields_table(thing)]
            continue
        parts += [
            f"### {name}",
            f"```text\n{_signature(name, thing)}\n```",
            str(inspect.getdoc(thing)),
        ]
        methods = [
            f"- `{_signature(method, function)}`: {_summary(function)}"
            for method, function in inspect.getmembers(thing, inspect.isfunction)
            if not method.startswith("_")
        ]
        parts += ["\n".join(methods)] if methods else []
    return "\n\n".join(parts) + "\n"


def _fields_table(cls: Any) -> str:
    texts = described_fields(cls, [field.name for field in fields(cls)])
    rows = []
    for field in fields(cls):
        default = field.default
        plain = isinstance(default, str | int | float | tuple)
        shown = f"`{default}`" if plain else "none" if default is None else ""
        rows.append((f"`{field.name}`", shown, texts[field.name].rstrip(".")))
    return _table(("Field", "Default", "Meaning"), rows).rstrip()


def _signature(name: str, thing: Any) -> str:
    """Return how to call it, without the types of the arguments."""
    found = inspect.signature(thing)
    bare = inspect.Parameter.empty
    arguments = [
        each.replace(annotation=bare) for each in found.parameters.values() if each.name != "self"
    ]
    return f"{name}{found.replace(parameters=arguments, return_annotation=bare)}"


def _summary(thing: object) -> str:
    return " ".join(str(inspect.getdoc(thing)).partition("\n\n")[0].split())


def clients_table() -> str:
    """What works by each client, and what does not, as `make clients` found it."""
    works: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for each in json.loads(_CLIENTS.read_text()):
        (works if each["works"] else missing).setdefault(each["client"], []).append(each["call"])
    rows = (
        (client, "; ".join(calls), "; ".join(missing.get(client, ["-"])))
        for client, calls in works.items()
    )
    return _table(("Client", "Works", "Does not, with a clear error"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings_table,
    "server_metrics": lambda: metrics_table(_server_metrics),
    "generation_metrics": lambda: metrics_table(lambda to: GenerationMetrics("model", to, 1)),
    "stream_metrics": lambda: metrics_table(lambda to: StreamMetrics("model", to)),
    "clients": clients_table,
    "rollout_metrics": lambda: _metric_rows(
        (name, family("x", "").type, text) for name, (family, text, _) in METRICS.items()
    ),
    "layers": layers_text,
    "python": python_reference,
    "rooms": rooms_table,
    "zoo": zoo_tables,
}


def filled(page: str) -> str:
    """Return a page with its generated parts as the code has them now."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[4]}", page)


def every_command(
    name: str = "mlctl", command: click.Command = cli
) -> Iterator[tuple[str, click.Command]]:
    """A command and those of its groups, each with the words that call it."""
    yield name, command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from every_command(f"{name} {each.name}", each)


def commands_markdown() -> str:
    """The page `docs/commands.md`: the help of every command."""
    parts = ["# Commands\n"]
    for name, command in every_command():
        context = click.Context(
            command,
            info_name=name,
            terminal_width=HELP_WIDTH,
            help_option_names=cli.context_settings["help_option_names"],
            show_default=True,
        )
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write every generated page next to this file."""
    folder = FOLDER
    for page in folder.glob("**/*.md"):
        page.write_text(filled(page.read_text()))
    (folder / "commands.md").write_text(commands_markdown())
    (folder / "errors.md").write_text(error_table_markdown())
    (folder / "manifest.schema.json").write_text(manifest_schema_text())
    (folder / "rollout.schema.json").write_text(rollout_schema_text())


if __name__ == "__main__":
    main()
