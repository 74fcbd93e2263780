"""What a bundle answers to single rows: over HTTP, in a batch job and in a stream."""

from __future__ import annotations

import asyncio
import math
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
from prometheus_client import CollectorRegistry
from pyarrow import parquet

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode
from mlctl.loadtest.inputs import infer_body
from mlctl.loadtest.parity.batch_path import from_column
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import ErrorLimit, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import REASON_COLUMN
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.declaration import ROUTE, argument_names
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.http.predict import PredictApp, to_array
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.json_data import decode_data
from mlctl.services.protocol.wire import declare, decode_raw
from mlctl.services.stream.base import ConnectionRequest, Outgoing, StreamUrl
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import transport_of
from tests.outside.case import Arrays, Row
from tests.support.listening import listening

_ROW = "zoo row"
_BAD_ROW = 400


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was rejected as a bad row."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Neither an answer nor a bad row."""

    reason: str


# Outputs of one row, without its dimension; None where a path cannot carry the row.
Answer = Arrays | Rejected | Broken | None


def online(bundle: VerifiedBundle, rows: Sequence[Row], together: int) -> dict[str, list[Answer]]:
    """Return what a server in this process answers; see `ask`."""

    async def main() -> dict[str, list[Answer]]:
        model = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
        await model.start()
        handler = InferHandler(model)
        transport = httpx.ASGITransport(PredictApp(model))
        try:
            async with (
                listening(V2App(model, handler), infer_protocol(handler)) as server,
                # No TLS: to read the machine's certificates takes longer than all requests.
                httpx.AsyncClient(
                    base_url=server.url, trust_env=False, timeout=60, verify=False
                ) as v2,
                httpx.AsyncClient(base_url="http://test", transport=transport) as predict,
            ):
                return await ask(v2, predict, ROUTE, bundle, rows, together)
        finally:
            await model.stop()

    return asyncio.run(main())


async def ask(
    v2: httpx.AsyncClient,
    predict: httpx.AsyncClient,
    route: str,
    bundle: VerifiedBundle,
    rows: Sequence[Row],
    together: int,
) -> dict[str, list[Answer]]:
    """Return the answers of V2 with binary data and of `/predict` at `route`.

    The first `together` rows are one request, each other row one more.
    """
    signature, name = bundle.manifest.signature, bundle.manifest.name
    groups = [*_alike(rows[:together]), *([row] for row in rows[together:])]
    found: dict[str, list[Answer]] = {"V2": [], ROUTE: []}
    for group in groups:
        found["V2"] += await _infer(v2, name, signature, group)
        found[ROUTE] += await _predict(predict, route, signature, group)
    return found


async def _infer(
    client: httpx.AsyncClient, name: str, signature: Signature, rows: Sequence[Row]
) -> list[Answer]:
    inputs = arrays_of(signature, rows)
    if inputs is None:
        return [None] * len(rows)
    body, headers = infer_body(signature, inputs, binary=True)
    found = await client.post(f"/v2/models/{name}/infer", content=body, headers=headers)
    if found.status_code != 200:
        return _failed(found, len(rows))
    length = int(found.headers["inference-header-content-length"])
    head, tail = orjson.loads(found.content[:length]), found.content[length:]
    specs = {spec.name: spec for spec in signature.outputs}
    outputs: Arrays = {}
    for each in head["outputs"]:
        spec = declare(specs, each["name"], each["datatype"], each["shape"])
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[each["name"]] = decode_data(spec, each["data"])
        else:
            outputs[each["name"]], tail = decode_raw(spec, tail[:size]), tail[size:]
    return split(outputs, len(rows))


async def _predict(
    client: httpx.AsyncClient, route: str, signature: Signature, rows: Sequence[Row]
) -> list[Answer]:
    if not all(map(_is_json, rows)):
        return [None] * len(rows)
    body = orjson.dumps([_plain(row) for row in rows], option=orjson.OPT_SERIALIZE_NUMPY)
    headers = {"content-type": "application/json"}
    found = await client.post(route, content=body, headers=headers)
    if found.status_code != 200:
        return _failed(found, len(rows))
    document, fields = found.json(), argument_names(signature.outputs)
    if len(signature.outputs) == 1:
        document = {fields[signature.outputs[0].name]: document}
    outputs = {spec.name: to_array(spec, document[fields[spec.name]]) for spec in signature.outputs}
    return split(outputs, len(rows))


def _failed(response: httpx.Response, rows: int) -> list[Answer]:
    text = response.text[:300]
    kind = Rejected if response.status_code == _BAD_ROW else Broken
    return [kind(f"{response.status_code}: {text}")] * rows


def every_path(
    bundle: VerifiedBundle, rows: Sequence[Row], together: int
) -> dict[str, list[Answer]]:
    """Return the answers of each path by its name."""
    runners = {"batch": batch(bundle, rows), "stream": stream(bundle, rows)}
    return {**online(bundle, rows, together), **runners}


def batch(bundle: VerifiedBundle, rows: Sequence[Row]) -> list[Answer]:
    """Score the rows with a batch job from Parquet to Parquet."""
    signature = bundle.manifest.signature
    with tempfile.TemporaryDirectory(prefix="mlctl-zoo-") as name:
        folder = Path(name)
        columns = {spec.name: _column(spec, rows) for spec in signature.inputs}
        table = pa.table({_ROW: pa.array(range(len(rows))), **columns})
        parquet.write_table(table, folder / "rows.parquet")
        run_job(
            bundle,
            open_source(str(folder / "rows.parquet")),
            open_sink(str(folder / "answers")),
            BatchConfig(keep=(_ROW,)),
            local_executor(1),
            RunControl(limit=ErrorLimit(share=1.0)),
        )
        answers: list[Answer] = [Broken("there is no answer")] * len(rows)
        for path in sorted((folder / "answers").glob("part-*.parquet")):
            found = parquet.read_table(path)
            for each in range(found.num_rows):
                row = found.slice(each, 1)
                answers[row.column(_ROW)[0].as_py()] = {
                    spec.name: from_column(spec, row)[0] for spec in signature.outputs
                }
        for path in (folder / "answers" / "_mlctl" / "quarantine").glob("*.parquet"):
            for bad in parquet.read_table(path).to_pylist():
                answers[bad["mlctl_row"]] = Rejected(bad[REASON_COLUMN])
    return answers


def stream(bundle: VerifiedBundle, rows: Sequence[Row]) -> list[Answer]:
    """Score each row as a message of a stream; rows that JSON cannot carry are left out."""
    signature = bundle.manifest.signature
    sent = {number: row for number, row in enumerate(rows) if _is_json(row)}
    answers: list[Answer] = [None] * len(rows)
    with tempfile.TemporaryDirectory(prefix="mlctl-zoo-") as folder:
        log = StreamUrl("sqlite", str(Path(folder) / "log.db"))
        source, out, dead = (log.with_topic(topic) for topic in ("in", "out", "dead"))
        with transport_of(log).open_producer(source) as producer:
            producer.publish(
                [
                    Outgoing(
                        orjson.dumps(_plain(row), option=orjson.OPT_SERIALIZE_NUMPY),
                        str(number).encode(),
                    )
                    for number, row in sent.items()
                ]
            )
        config = StreamConfig(
            ConnectionRequest(source, "zoo", out, dead),
            PayloadRequest(),
            RunSettings(BatchGoals(), dead_share=1.0, max_messages=len(sent)),
        )
        run_stream(bundle, config, lambda _event: None, threading.Event())
        for number in sent:
            answers[number] = Broken("there is no answer")
        for each in transport_of(log).browse(out):
            assert each.value is not None
            document = orjson.loads(each.value)
            answers[int(each.key or b"")] = {
                spec.name: to_array(spec, [document[spec.name]])[0] for spec in signature.outputs
            }
        for each in transport_of(log).browse(dead):
            headers = dict(each.headers)
            reason = " ".join((value or b"").decode(errors="replace") for value in headers.values())
            bad = ErrorCode.INVALID_INPUT.value in reason
            answers[int(each.key or b"")] = (Rejected if bad else Broken)(reason)
    return answers


def split(outputs: Arrays, rows: int) -> list[Answer]:
    """Return the outputs of each row."""
    return [{name: array[row] for name, array in outputs.items()} for row in range(rows)]


def arrays_of(signature: Signature, rows: Sequence[Row]) -> Arrays | None:
    """Return the rows as tensors; NaN and empty text are gaps. None if a gap has no form."""
    found: Arrays = {}
    for spec in signature.inputs:
        values = [row[spec.name] for row in rows]
        if spec.dtype is Datatype.BYTES:
            texts = np.empty(len(values), object)
            texts[:] = [b"" if is_gap(each) else str(each).encode() for each in values]
            found[spec.name] = texts.reshape(len(values), *(1 for _ in spec.shape[1:]))
            continue
        dtype = np.dtype(spec.dtype.numpy_name)
        if any(map(is_gap, values)):
            if dtype.kind != "f":
                return None
            values = [math.nan if is_gap(each) else each for each in values]
        found[spec.name] = np.stack([np.asarray(each, dtype) for each in values])
    return found


def is_gap(value: Any) -> bool:
    """Return whether a value of a row is missing."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _column(spec: TensorSpec, rows: Sequence[Row]) -> pa.Array:
    values = [None if is_gap(row[spec.name]) else row[spec.name] for row in rows]
    if spec.dtype is Datatype.BYTES:
        return pa.array(values, pa.string())
    kind = pa.from_numpy_dtype(np.dtype(spec.dtype.numpy_name))
    if len(spec.shape) == 1:
        return pa.array(values, kind)
    return pa.array([np.asarray(each).reshape(-1) for each in values], pa.list_(kind))


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows in groups whose values have the same shapes."""
    groups: list[list[Row]] = []
    for row in rows:
        if groups and _shapes(groups[-1][0]) == _shapes(row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _shapes(row: Row) -> list[tuple[int, ...]]:
    return [np.shape(value) for value in row.values()]


def _is_json(row: Row) -> bool:
    """Return whether JSON has a form for each value: not for an infinity, nor NaN in a list."""
    return all(
        is_gap(value)
        or isinstance(value, str)
        or bool(np.isfinite(np.asarray(value, np.float64)).all())
        for value in row.values()
    )


def _plain(row: Row) -> dict[str, Any]:
    return {
        name: None if is_gap(value) else value.tolist() if hasattr(value, "tolist") else value
        for name, value in row.items()
    }


__all__ = ["Answer", "Broken", "Rejected", "batch", "online", "split", "stream"]
