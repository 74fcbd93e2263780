"""Metrics of a language model: the times of answers, tokens, and the use of the KV cache."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from bundle.latency import (
    FIRST_TOKEN_EDGES_MS,
    TOKEN_EDGES_MS,
    TPOT_METRIC,
    TTFT_METRIC,
)
from services.online.metrics.counts import Distribution
from services.online.metrics.exposition import CounterSink, Exposition, GaugeSink, HistogramSink

_FIRST_BOUNDS = tuple(edge / 1000 for edge in FIRST_TOKEN_EDGES_MS)
_EACH_BOUNDS = tuple(edge / 1000 for edge in TOKEN_EDGES_MS)


class GenerationMetrics:
    """The metrics of one language model in one worker; made on the worker's event loop."""

    def __init__(self, model: str, registry: CollectorRegistry, capacity: int) -> None:
        """`capacity` is the number of tokens that the KV cache can hold."""
        labels = {"model": model}
        self._first = Distribution(_FIRST_BOUNDS)
        self._each = Distribution(_EACH_BOUNDS)
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._running = 0
        self._waiting = 0
        self._cached = 0
        self._capacity = capacity
        self._histograms = [
            (HistogramSink(name, text, labels, registry, bounds=values.bounds), values)
            for name, text, values in (
                (TTFT_METRIC, "Seconds from a request to its first token.", self._first),
                (
                    TPOT_METRIC,
                    "Mean seconds of an answer's further tokens.",
                    self._each,
                ),
            )
        ]
        self._counters = [
            CounterSink(name, text, labels, (), registry)
            for name, text in (
                (
                    "mlctl_prompt_tokens",
                    "Tokens of prompts whose answer began; its rate is tokens per second.",
                ),
                ("mlctl_generated_tokens", "Generated tokens; its rate is tokens per second."),
            )
        ]
        self._gauges = [
            GaugeSink(name, text, labels, registry)
            for name, text in (
                ("mlctl_sequences_running", "Requests with a place in the KV cache."),
                ("mlctl_sequences_waiting", "Requests that wait for such a place."),
                ("mlctl_kv_cache_tokens", "Tokens in the KV cache."),
                ("mlctl_kv_cache_capacity_tokens", "Tokens that the KV cache can hold."),
            )
        ]
        self._exposition = Exposition(registry, self._report)
        self._exposition.touch()

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """Record an answer's first token, `seconds` after its request."""
        self._first.observe(seconds)
        self._prompt_tokens += prompt_tokens
        self._exposition.touch()

    def tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._generated_tokens += count

    def ended(self, tokens: int, seconds: float) -> None:
        """Record an answer of `tokens` tokens, the last of which came `seconds` after the first."""
        if tokens > 1:
            self._each.observe(seconds / (tokens - 1))
            self._exposition.touch()

    def state(self, running: int, waiting: int, cached: int) -> None:
        """Record the requests that run and wait, and the tokens in the KV cache."""
        self._running, self._waiting, self._cached = running, waiting, cached
        self._exposition.touch()

    def publish(self) -> None:
        """Push all counts to prometheus-client."""
        self._exposition.publish()

    def _report(self) -> None:
        for sink, values in self._histograms:
            sink.report("", values.counts, values.total)
        for counter, total in zip(
            self._counters, (self._prompt_tokens, self._generated_tokens), strict=True
        ):
            counter.report({(): total})
        states = (self._running, self._waiting, self._cached, self._capacity)
        for gauge, value in zip(self._gauges, states, strict=True):
            gauge.report(value)
