"""Run a causal language model with a KV cache in which each row is a sequence of its own length.

onnxruntime-genai's engine schedules continuously only with paged attention, which exists for CUDA
and WebGPU. Its model builder's graphs for the CPU use GroupQueryAttention, which reads each row's
length from the attention mask. One batch can therefore hold sequences of unequal length, and a
sequence can join or leave at every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import require_onnxruntime
from mlctl.services.model.run_errors import run_error
from mlctl.services.model.session import load_onnx

_CONFIG = "genai_config.json"
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Decoder:
    """The model's session and its KV cache: `slots` sequences of at most `max_tokens` tokens each.

    The cache's pages are taken from the system when they are first written, so that short sequences
    take little memory. Call it from one thread at a time.
    """

    def __init__(self, folder: Path, slots: int, max_tokens: int, threads: int = 1) -> None:
        """Load the model in `folder`; UNSUPPORTED_MODEL if its cache cannot be shared by rows."""
        require_onnxruntime()
        config = json.loads((folder / _CONFIG).read_text())
        decoder = config["model"]["decoder"]
        if not config["search"].get("past_present_share_buffer"):
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                "the model has no KV cache that is updated in place (GroupQueryAttention)",
            )
        self.slots = slots
        self.max_tokens = max_tokens
        model = folder / decoder["filename"]
        self._session = load_onnx(model, [("CPUExecutionProvider", {})], threads)
        types = {each.name: each.type for each in self._session.get_inputs()}
        # The operator wants room for a whole window of sliding attention.
        window = decoder.get("sliding_window", {}).get("window_size", 0)
        room = max(max_tokens, window)
        shape = (slots, decoder["num_key_value_heads"], room, decoder["head_size"])
        inputs, outputs = decoder["inputs"], decoder["outputs"]
        self._ids, self._mask = inputs["input_ids"], inputs["attention_mask"]
        positions = inputs.get("position_ids")
        self._positions = positions if positions in types else None
        self._cache: list[tuple[str, str, np.ndarray]] = []
        for kind in ("key", "value"):
            for layer in range(decoder["num_hidden_layers"]):
                past = inputs[f"past_{kind}_names"] % layer
                present = outputs[f"present_{kind}_names"] % layer
                self._cache.append((past, present, np.zeros(shape, _TYPES[types[past]])))
        self._logits = outputs["logits"]
        kinds = {each.name: each.type for each in self._session.get_outputs()}
        size = config["model"]["vocab_size"]
        self._scores = np.empty((slots, 1, size), _TYPES[kinds[self._logits]])
        # By range of slots: binding the whole cache anew would take longer than a small model.
        self._bindings: dict[tuple[int, int], Any] = {}

    @property
    def cache_bytes(self) -> int:
        """The size of the whole KV cache in bytes."""
        return sum(array.nbytes for _, _, array in self._cache)

    def prefill(self, slot: int, tokens: Sequence[int], past: int) -> np.ndarray:
        """Append `tokens` to the `past` tokens of `slot`; return the logits of the last one."""
        return self._fill(slot, tokens, past)[-1, :]

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits [tokens, vocabulary] (float32) after each of `tokens`, in slot 0."""
        return self._fill(0, tokens, 0)

    def decode(self, first: int, tokens: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """Append one token to each of the slots from `first` on, as many as there are `tokens`.

        `lengths` are the tokens in each slot before. Returns logits of the shape [rows, vocabulary]
        (float32), which the next call overwrites. A slot with nothing to append takes part as well:
        what is written after its last token is overwritten by its next one.
        """
        past = np.array(lengths, np.int64)[:, None]
        mask = (np.arange(past.max() + 1) <= past).astype(np.int64)
        ids = np.array(tokens, np.int64)[:, None]
        last = first + len(tokens)
        binding = self._binding(first, last)
        _bind_array(binding.bind_output, self._logits, self._scores[first:last])
        self._run(binding, ids, mask, past)
        return self._scores[first:last, 0].astype(np.float32, copy=False)

    def _fill(self, slot: int, tokens: Sequence[int], past: int) -> np.ndarray:
        ids = np.array([tokens], np.int64)
        end = past + len(tokens)
        positions = np.arange(past, end, dtype=np.int64)[None]
        binding = self._binding(slot, slot + 1)
        binding.bind_output(self._logits, "cpu")
        self._run(binding, ids, np.ones((1, end), np.int64), positions)
        logits: np.ndarray = binding.get_outputs()[0].numpy()[0]
        return logits.astype(np.float32, copy=False)

    def _binding(self, first: int, last: int) -> Any:
        """Return the binding of the cache from slot `first` up to `last`, which it excludes."""
        found = self._bindings.get((first, last))
        if found is None:
            found = self._bindings[first, last] = self._session.io_binding()
            found.bind_output(self._logits, "cpu")  # the first of `get_outputs`
            for past, present, array in self._cache:
                _bind_array(found.bind_input, past, array[first:last])
                _bind_array(found.bind_output, present, array[first:last])
        return found

    def _run(self, binding: Any, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> None:
        binding.bind_cpu_input(self._ids, ids)
        binding.bind_cpu_input(self._mask, mask)
        if self._positions is not None:
            binding.bind_cpu_input(self._positions, positions)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise run_error(error) from error


def _bind_array(bind: Callable[..., None], name: str, array: np.ndarray) -> None:
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
