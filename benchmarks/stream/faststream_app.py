"""FastStream as its documentation has it, a message at a time, with ONNX Runtime in the handler.

Run by path, with the Python of an environment that has it: it imports nothing of mlctl.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


def main() -> None:
    """Answer `count` messages, and print what it took from the first one on."""
    address, source, answers, group, model, payload, count = sys.argv[1:]
    asyncio.run(serve(address, source, answers, group, model, payload, int(count)))


async def serve(
    address: str,
    source: str,
    answers: str,
    group: str,
    model: str,
    payload: str,
    count: int,
) -> None:
    """Run until `count` messages are answered."""
    import numpy as np
    import onnxruntime

    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    broker, subscriber = opened(address, source, group)
    marks: list[tuple[float, float]] = []
    enough = asyncio.Event()

    @subscriber  # type: ignore[untyped-decorator]
    @broker.publisher(answers)  # type: ignore[untyped-decorator]
    async def handle(body: bytes) -> bytes:
        if payload == "json":
            x = np.array([json.loads(body)["x"]], np.float32)
        else:
            x = np.frombuffer(body, np.float32)[None]
        y = session.run(None, {"x": x})[0]
        marks.append((time.perf_counter(), time.process_time()))
        if len(marks) == count:
            enough.set()
        return json.dumps({"y": y[0].tolist()}).encode() if payload == "json" else y.tobytes()

    async with broker:
        await broker.start()
        await enough.wait()
    seconds, cpu = (after - before for before, after in zip(marks[0], marks[-1], strict=True))
    print(json.dumps({"messages": len(marks) - 1, "seconds": seconds, "cpu": cpu}))


def opened(address: str, source: str, group: str) -> tuple[Any, Any]:
    """The broker, and the subscriber of `source`; bytes are passed as they come."""

    async def plain(message: Any) -> bytes:
        body: bytes = message.body
        return body

    from faststream.confluent import KafkaBroker  # type: ignore[import-not-found]

    kafka = KafkaBroker(address, logger=None, allow_auto_create_topics=False)
    arguments = {"group_id": group, "auto_offset_reset": "earliest", "decoder": plain}
    return kafka, kafka.subscriber(source, **arguments)


if __name__ == "__main__":
    main()
