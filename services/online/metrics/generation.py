"""Metrics of a language model: the times of answers, tokens, and the use of the KV cache."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from mlctl.bundle.latency import (
    FIRST_TOKEN_EDGES_MS,
    TOKEN_EDGES_MS,
    TPOT_METRIC,
    TTFT_METRIC,
)
from mlctl.services.online.metrics.counts import Distribution
from mlctl.services.online.metrics.exposition import (
    CounterSink,
    Exposition,
    GaugeSink,
    HistogramSink,
)

_PROMPT_TOKENS, _GENERATED_TOKENS = "mlctl_prompt_tokens", "mlctl_generated_tokens"
_TIMES = {
    TTFT_METRIC: ("Seconds from a request to its first token.", FIRST_TOKEN_EDGES_MS),
    TPOT_METRIC: ("Mean seconds of an answer's further tokens.", TOKEN_EDGES_MS),
}
_COUNTERS = {
    _PROMPT_TOKENS: "Tokens of prompts whose answer began; its rate is tokens per second.",
    _GENERATED_TOKENS: "Generated tokens; its rate is tokens per second.",
}
_GAUGES = {
    "mlctl_sequences_running": "Requests with a place in the KV cache.",
    "mlctl_sequences_waiting": "Requests that wait for such a place.",
    "mlctl_kv_cache_tokens": "Tokens in the KV cache.",
    "mlctl_kv_cache_capacity_tokens": "Tokens that the KV cache can hold.",
}


class GenerationMetrics:
    """The metrics of one language model in one worker; made on the worker's event loop."""

    def __init__(self, model: str, registry: CollectorRegistry, capacity: int) -> None:
        """`capacity` is the number of tokens that the KV cache can hold."""
        labels = {"model": model}
        self._times = {
            name: Distribution(tuple(edge / 1000 for edge in edges))
            for name, (_, edges) in _TIMES.items()
        }
        self._tokens = dict.fromkeys(_COUNTERS, 0)
        self._capacity = capacity
        self._state = (0, 0, 0, capacity)
        self._histograms = {
            name: HistogramSink(name, text, labels, registry, bounds=self._times[name].bounds)
            for name, (text, _) in _TIMES.items()
        }
        self._counters = {
            name: CounterSink(name, text, labels, (), registry) for name, text in _COUNTERS.items()
        }
        self._gauges = [GaugeSink(name, text, labels, registry) for name, text in _GAUGES.items()]
        self._exposition = Exposition(registry, self._report)
        self._exposition.touch()

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """Record an answer's first token, `seconds` after its request."""
        self._times[TTFT_METRIC].observe(seconds)
        self._tokens[_PROMPT_TOKENS] += prompt_tokens
        self._exposition.touch()

    def tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._tokens[_GENERATED_TOKENS] += count

    def ended(self, tokens: int, seconds: float) -> None:
        """Record an answer of `tokens` tokens, the last of which came `seconds` after the first."""
        if tokens > 1:
            self._times[TPOT_METRIC].observe(seconds / (tokens - 1))
            self._exposition.touch()

    def state(self, running: int, waiting: int, cached: int) -> None:
        """Record the requests that run and wait, and the tokens in the KV cache."""
        self._state = running, waiting, cached, self._capacity
        self._exposition.touch()

    def publish(self) -> None:
        """Push all counts to prometheus-client."""
        self._exposition.publish()

    def _report(self) -> None:
        for name, times in self._times.items():
            self._histograms[name].report("", times.counts, times.total)
        for name, total in self._tokens.items():
            self._counters[name].report({(): total})
        for gauge, value in zip(self._gauges, self._state, strict=True):
            gauge.report(value)
