"""Checkpoints with int4 weights: the layers of a small model rounded to nearest, as AWQ or GPTQ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.support.tiny_llm import tiny_llm_folder

GROUP = 32
# AWQ's order: the column of eight that each nibble of an int32 has, from the lowest.
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def quantization_config(method: str, *, desc_act: bool = False) -> dict[str, Any]:
    """Return what AutoAWQ or GPTQModel write into config.json."""
    common = {"quant_method": method, "bits": 4, "group_size": GROUP}
    if method == "awq":
        return {**common, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
    return {**common, "desc_act": desc_act, "sym": False, "checkpoint_format": "gptq"}


def save_int4_checkpoint(
    folder: Path,
    method: str,
    *,
    sym: bool = False,
    desc_act: bool = False,
    source: Path | None = None,
) -> dict[str, np.ndarray]:
    """Write the model in `source` with int4 layers; return the fp32 weights that they stand for.

    `sym` has the zero 8 for all groups; `desc_act` gives the rows of GPTQ's groups another order.
    Without `source` it is the tiny language model.
    """
    source = source or tiny_llm_folder()
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    stored: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            stored[name] = meant[name] = weight
            continue
        rows = weight.shape[1]
        group = np.arange(rows) // GROUP
        if desc_act:
            group = np.random.default_rng(rows).permutation(group)
        values, zeros, scales = _round(weight.T, group, sym=sym)
        meant[name] = ((values - zeros[group]) * scales[group].astype(np.float32)).T
        layer = name.removesuffix("weight")
        stored[f"{layer}scales"] = scales
        if method == "awq":
            stored[f"{layer}qweight"] = _pack(values, _AWQ_COLUMNS)
            stored[f"{layer}qzeros"] = _pack(zeros, _AWQ_COLUMNS)
        else:
            stored[f"{layer}qweight"] = _pack(values.T, range(8)).T.copy()
            stored[f"{layer}qzeros"] = _pack((zeros - 1) & 15, range(8))
            stored[f"{layer}g_idx"] = group.astype(np.int32)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization_config(method, desc_act=desc_act)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    return meant


def _round(
    weight: np.ndarray, group: np.ndarray, *, sym: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values 0 to 15 [in, out], zeros and fp16 scales [groups, out] of `weight`."""
    rows = [weight[group == number] for number in range(group.max() + 1)]
    low = np.array([np.minimum(part.min(axis=0), 0) for part in rows])
    high = np.array([np.maximum(part.max(axis=0), 0) for part in rows])
    span = 2 * np.maximum(-low, high) if sym else high - low
    scales = (span / 15).astype(np.float16)
    zeros = np.full(low.shape, 8) if sym else np.rint(-low / scales).astype(int)
    values = np.rint(weight / scales[group]).astype(int) + zeros[group]
    return values.clip(0, 15), zeros, scales


def _pack(values: np.ndarray, columns: Any) -> np.ndarray:
    """Return [rows, columns / 8] int32 with eight `values` [rows, columns] each."""
    eight = values.reshape(len(values), -1, 8)[:, :, list(columns)].astype(np.uint32)
    shifts = 4 * np.arange(8, dtype=np.uint32)
    packed: np.ndarray = np.bitwise_or.reduce(eight << shifts, axis=2)
    return packed.view(np.int32)
