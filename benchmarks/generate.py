"""Token generation: tokens per second and time to first token at 1, 4 and 16 streams.

One model of 25 million random weights in fp32, one thread for each runtime. Beside the server over
HTTP: its engine in process, onnxruntime-genai one request at a time and with its own engine, and
`generate` of transformers on all prompts as one batch, in fp32 too; and the engine in process with
int4 weights. Each figure is the median of three rounds. Last, clients that leave after their first
token.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.result import argument_parser, measuring
from benchmarks.servers import tree_cpu_seconds
from mlctl.bento.packaging import build_bento
from mlctl.bundle.manifest import GENERATION_FOLDER
from mlctl.bundle.verify import VerifiedBundle
from mlctl.optimize.recipes.generation import build_engine_folder, read_generation
from mlctl.services.generate.decoder import Decoder
from mlctl.services.generate.engine import ContinuousBatch, GenerationRequest
from mlctl.services.generate.engine import Sequence as Running
from mlctl.services.generate.sampling import TokenSampling
from mlctl.services.generate.text import TextCodec
from tests.support.serving import Server, launch, running
from tests.support.tiny_llm import make_llm_bundle, tiny_llm_folder

STREAMS = (1, 4, 16)
PROMPT_TOKENS, ANSWER_TOKENS = 32, 64
_ROUNDS = 3
_LEAVING = 100
_SERVER = "mlctl over HTTP"


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second over all streams, and the median time to first token in seconds.

    `per_cpu` are tokens per second of CPU, in which other work on the machine shows least.
    """

    tokens: float
    first: float
    per_cpu: float = 0.0


def make_model(folder: Path) -> None:
    """Save a Llama shape with random weights and the tokenizer of the tests' small model."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny_llm_folder())
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def prompts(streams: int) -> list[list[int]]:
    """Return a prompt of other tokens for each stream."""
    return [[2 + (7 * row + 3 * at) % 390 for at in range(PROMPT_TOKENS)] for row in range(streams)]


def with_transformers(folder: Path) -> Callable[[int], Rate]:
    """All prompts as one batch, which ends with its longest answer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()

    def run(streams: int) -> Rate:
        ids = torch.tensor(prompts(streams))
        options = {"do_sample": False, "min_new_tokens": ANSWER_TOKENS, "pad_token_id": 1}
        begun = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1)
            first = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=ANSWER_TOKENS,
                **options,
            )
        return Rate(streams * ANSWER_TOKENS / (time.perf_counter() - first), first - begun)

    return run


def one_at_a_time(bundle: VerifiedBundle) -> Callable[[int], Rate]:
    """onnxruntime-genai's generator; a request waits for those before it."""
    og = _genai()
    model = og.Model(_config(og, bundle))

    def run(streams: int) -> Rate:
        begun, firsts = time.perf_counter(), []
        for prompt in prompts(streams):
            options = og.GeneratorParams(model)
            size = PROMPT_TOKENS + ANSWER_TOKENS
            options.set_search_options(max_length=size, min_length=size, do_sample=False)
            generator = og.Generator(model, options)
            generator.append_tokens(prompt)
            for step in range(ANSWER_TOKENS):
                generator.generate_next_token()
                if not step:
                    firsts.append(time.perf_counter() - begun)
        seconds = time.perf_counter() - begun
        return Rate(streams * ANSWER_TOKENS / seconds, statistics.median(firsts))

    return run


def with_genai_engine(bundle: VerifiedBundle) -> Callable[[int], Rate]:
    """onnxruntime-genai's engine; on a CPU it runs a batch until all of its answers have ended."""
    og = _genai()
    config = _config(og, bundle)
    config.overlay(json.dumps({"engine": {"static_batching": {"max_batch_size": max(STREAMS)}}}))
    engine = og.Engine(og.Model(config))
    buffer = engine.create_event_buffer(4 * max(STREAMS))

    def run(streams: int) -> Rate:
        firsts: dict[Any, float] = {}
        begun, tokens, requests = time.perf_counter(), 0, []
        for prompt in prompts(streams):
            request = engine.create_request()
            options = og.TurnOptions(request)
            options.set_max_generated_tokens(ANSWER_TOKENS)
            options.set_min_generated_tokens(ANSWER_TOKENS)
            request.begin_turn(prompt, options)
            requests.append(request)
        while engine.has_pending_requests():
            for event in engine.run(buffer):
                firsts.setdefault(event.request, time.perf_counter() - begun)
                tokens += 1
        for request in requests:
            request.close()
        seconds = time.perf_counter() - begun
        return Rate(tokens / seconds, statistics.median(firsts.values()))

    return run


def in_process(folder: Path) -> Callable[[int], Rate]:
    """The server's engine without the server."""
    generation = read_generation(folder)
    decoder = Decoder(folder, max(STREAMS), generation.context_length)
    batch = ContinuousBatch(decoder, TextCodec(folder, generation), generation.eos_ids)

    def run(streams: int) -> Rate:
        firsts: dict[Running, float] = {}
        begun, tokens = time.perf_counter(), 0
        for prompt in prompts(streams):
            greedy = TokenSampling(temperature=0)
            request = GenerationRequest(tuple(prompt), ANSWER_TOKENS, greedy)
            batch.add(Running(request, batch.codec))
        while batch.busy:
            for sequence, _ in batch.step().pieces:
                firsts.setdefault(sequence, time.perf_counter() - begun)
                tokens += 1
        return Rate(tokens / (time.perf_counter() - begun), statistics.median(firsts.values()))

    return run


def over_http(server: Server) -> Callable[[int], Rate]:
    """Streamed answers of /v1/completions, one connection for each stream."""

    async def read(client: httpx.AsyncClient, prompt: Sequence[int]) -> tuple[float, int]:
        begun, first, usage = time.perf_counter(), 0.0, b""
        async with client.stream("POST", "/v1/completions", json=_body(prompt)) as reply:
            async for chunk in reply.aiter_raw():
                first = first or time.perf_counter() - begun
                usage = chunk
        last = usage.decode().split("data: ")[-2]
        return first, int(json.loads(last)["usage"]["completion_tokens"])

    async def run_all(streams: int) -> Rate:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            begun = time.perf_counter()
            found = await asyncio.gather(*(read(client, prompt) for prompt in prompts(streams)))
            seconds = time.perf_counter() - begun
        firsts, tokens = zip(*found, strict=True)
        return Rate(sum(tokens) / seconds, statistics.median(firsts))

    return lambda streams: asyncio.run(run_all(streams))


async def leave(server: Server) -> tuple[int, float]:
    """Disconnect many clients at their first token; return the slots in use and the seconds after.

    The seconds are until no request runs or waits any more.
    """
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:

        async def first_token(prompt: Sequence[int]) -> None:
            async with client.stream("POST", "/v1/completions", json=_body(prompt)) as reply:
                await anext(reply.aiter_raw())

        await asyncio.gather(*map(first_token, prompts(_LEAVING)))
        begun, busy = time.perf_counter(), 1.0
        while busy and time.perf_counter() - begun < 10:
            text = (await client.get("/metrics")).text
            busy = sum(
                float(line.rpartition(" ")[2])
                for line in text.splitlines()
                if line.startswith(("mlctl_sequences_running{", "mlctl_sequences_waiting{"))
            )
        return int(busy), time.perf_counter() - begun


def _costed(run: Callable[[int], Rate], streams: int, server: psutil.Process | None) -> Rate:
    """Run once; add the CPU time of the server's processes, or of this one."""

    def spent() -> float:
        return time.process_time() if server is None else tree_cpu_seconds(server)

    before = spent()
    rate = run(streams)
    cost = max(spent() - before, 1e-9)
    return replace(rate, per_cpu=streams * ANSWER_TOKENS / cost)


def _median(rates: Sequence[Rate]) -> Rate:
    """Return the median of each figure."""
    return Rate(
        statistics.median(rate.tokens for rate in rates),
        statistics.median(rate.first for rate in rates),
        statistics.median(rate.per_cpu for rate in rates),
    )


def _body(prompt: Sequence[int]) -> dict[str, Any]:
    return {
        "model": "bench-llm",
        "prompt": list(prompt),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _genai() -> Any:
    import onnxruntime_genai  # type: ignore[import-untyped]

    onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai


def _config(og: Any, bundle: VerifiedBundle) -> Any:
    config = og.Config(str(bundle.root / "generate"))
    threads = {"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}
    config.overlay(json.dumps(threads))
    return config


def main() -> None:
    arguments = argument_parser("generate", __doc__).parse_args()
    with (
        measuring("generate", arguments.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-generate-") as name,
    ):
        folder = Path(name)
        make_model(folder / "hf")
        build_engine_folder(folder / "hf", folder / "int4", "int4")
        bundle = make_llm_bundle(folder / "hf", folder / "bundle", {}, name="bench-llm")
        built = build_bento(bundle, {})
        settings = {"MLCTL_MAX_SEQUENCES": str(max(STREAMS))}
        home = Path(built.path).parents[2]
        launched = launch(
            built.tag, folder / "log", cwd=folder, bento_home=home, environment=settings
        )
        with running(launched) as server:
            process = psutil.Process(server.process.pid)
            runs = {
                _SERVER: over_http(server),
                "its engine in process": in_process(bundle.root / GENERATION_FOLDER),
                "its engine in process, int4": in_process(folder / "int4"),
                "onnxruntime-genai, engine": with_genai_engine(bundle),
                "onnxruntime-genai, one at a time": one_at_a_time(bundle),
                "transformers, one batch": with_transformers(folder / "hf"),
            }
            streams = [f"{count} streams" for count in STREAMS]
            rates = result.table("Tokens per second", "", *streams)
            costs = result.table("Tokens per second of CPU", "", *streams)
            firsts = result.table("Median time to first token, ms", "", *streams)
            rounds: dict[str, list[list[Rate]]] = {label: [] for label in runs}
            for _ in range(_ROUNDS):  # in turns: the machine may become faster or slower
                for label, run in runs.items():
                    served = process if label == _SERVER else None
                    rounds[label].append([_costed(run, count, served) for count in STREAMS])
            medians = {
                label: [_median(rates) for rates in zip(*found, strict=True)]
                for label, found in rounds.items()
            }
            for label, found in medians.items():
                rates.add(label, *(rate.tokens for rate in found))
                costs.add(label, *(rate.per_cpu for rate in found))
                firsts.add(label, *(rate.first * 1e3 for rate in found))
            result.chart(
                f"{STREAMS[-1]} streams",
                "tokens/s",
                {label: found[-1].tokens for label, found in medians.items()},
            )
            lost, seconds = asyncio.run(leave(server))
            left = result.table("Clients that leave", "clients", "slots lost", "free after, ms")
            left.add(str(_LEAVING), lost, seconds * 1e3)


if __name__ == "__main__":
    main()
