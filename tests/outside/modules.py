"""Cases of torch modules of the common kinds, logged as `torch.export` programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.outside.case import Arrays, Case, Row, Source, log

GROUP = "torch modules"
_JUDGE, _ORDINARY = 24, 8
Tensor = torch.Tensor
MakeRows = Callable[[np.random.Generator, int], Arrays]


class _Pick(nn.Module):
    """Return one of the values that a layer returns."""

    def __init__(self, layer: nn.Module, number: int = 0) -> None:
        super().__init__()
        self.layer, self.number = layer, number

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[self.number]
        return found


class _Attention(nn.Module):
    """Self-attention of steps, with its mean weights thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


class _Masked(nn.Module):
    """Token ids and their mask through an encoder; the mean of the states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(self.embedding(ids), src_key_padding_mask=mask == 0)
        weights = mask[:, :, None].to(states.dtype)
        found: Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return found


class _Seq2Seq(nn.Module):
    """An encoder and a decoder of the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        found: Tensor = self.net(source, target)
        return found


class _Siamese(nn.Module):
    """Two inputs of one form and their cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return nn.functional.cosine_similarity(self.net(left), self.net(right), dim=1)


class _Tabular(nn.Module):
    """Numbers and two categories, with embeddings and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.city, self.plan = nn.Embedding(9, 3), nn.Embedding(4, 2)
        self.net = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, numbers: Tensor, city: Tensor, plan: Tensor) -> Tensor:
        found: Tensor = self.net(torch.cat([numbers, self.city(city), self.plan(plan)], dim=1))
        return found


class _Sdpa(nn.Module):
    """Causal attention in one call."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return found


class _Residual(nn.Module):
    """A residual block and a head over the mean of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        states = self.stem(x)
        found: Tensor = self.head((states + self.block(states)).mean(dim=(2, 3)))
        return found


class _Vae(nn.Module):
    """Mean and reconstruction, without the random part."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.encoder(x)
        return mean, torch.sigmoid(self.decoder(mean))


class _TopK(nn.Module):
    """The three best of the scores and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = self.net(x).softmax(1).topk(3, dim=1)
        return values, places


class _Cell(nn.Module):
    """A cell in a loop over three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 6)
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state


def _normal(*shape: int, name: str = "x") -> MakeRows:
    return lambda rng, rows: {name: rng.normal(size=(rows, *shape)).astype(np.float32)}


def _tokens(rng: np.random.Generator, rows: int) -> Arrays:
    mask = (np.arange(9) < rng.integers(1, 10, (rows, 1))).astype(np.int64)
    return {"ids": rng.integers(1, 50, (rows, 9)) * mask, "mask": mask}


def _ids(rng: np.random.Generator, rows: int) -> Arrays:
    return {"ids": rng.integers(0, 50, (rows, 6))}


def _pair(rng: np.random.Generator, rows: int) -> Arrays:
    return {**_normal(4, name="left")(rng, rows), **_normal(4, name="right")(rng, rows)}


def _sequences(rng: np.random.Generator, rows: int) -> Arrays:
    return {**_normal(5, 8, name="source")(rng, rows), **_normal(4, 8, name="target")(rng, rows)}


def _mixed(rng: np.random.Generator, rows: int) -> Arrays:
    categories = {"city": rng.integers(0, 9, rows), "plan": rng.integers(0, 4, rows)}
    return {**_normal(4, name="numbers")(rng, rows), **categories}


def _bytes(rng: np.random.Generator, rows: int) -> Arrays:
    return {"image": rng.integers(0, 256, (rows, 3, 8, 8)).astype(np.uint8)}


class _Pixels(_Residual):
    """Bytes of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float() / 255 - 0.5)


def _encoder(layers: int = 1, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _double(module: nn.Module) -> nn.Module:
    return module.double()


# Name, the kinds that a rejection may name, the module, its rows, its outputs, and the inputs whose
# second dimension is free.
_MODULES: Sequence[
    tuple[str, Callable[[], nn.Module], MakeRows, tuple[str, ...], tuple[str, ...]]
] = (
    ("Linear", lambda: nn.Linear(4, 3), _normal(4), ("y",), ()),
    (
        "Linear, float64",
        lambda: nn.Linear(4, 3).double(),
        lambda r, n: {"x": r.normal(size=(n, 4))},
        ("y",),
        (),
    ),
    (
        "MLP with dropout",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)),
        _normal(4),
        ("y",),
        (),
    ),
    (
        "BatchNorm1d",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)),
        _normal(4),
        ("y",),
        (),
    ),
    (
        "LayerNorm and GELU",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU()),
        _normal(4),
        ("y",),
        (),
    ),
    (
        "GroupNorm",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)),
        _normal(3, 8, 8),
        ("y",),
        (),
    ),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(3), _normal(3, 8, 8), ("y",), ()),
    (
        "Conv1d",
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        ),
        _normal(3, 16),
        ("y",),
        (),
    ),
    (
        "Conv2d",
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 4)
        ),
        _normal(3, 8, 8),
        ("y",),
        (),
    ),
    (
        "Conv3d",
        lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten()),
        _normal(1, 4, 4, 4),
        ("y",),
        (),
    ),
    (
        "ConvTranspose2d",
        lambda: nn.ConvTranspose2d(3, 2, 2, stride=2),
        _normal(3, 4, 4),
        ("y",),
        (),
    ),
    (
        "depthwise Conv2d",
        lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
        _normal(4, 6, 6),
        ("y",),
        (),
    ),
    (
        "Upsample",
        lambda: nn.Sequential(
            nn.Conv2d(3, 2, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear")
        ),
        _normal(3, 6, 6),
        ("y",),
        (),
    ),
    ("PixelShuffle", lambda: nn.PixelShuffle(2), _normal(4, 4, 4), ("y",), ()),
    ("residual blocks", _Residual, _normal(3, 8, 8), ("y",), ()),
    ("bytes of a picture", _Pixels, _bytes, ("y",), ()),
    (
        "Embedding",
        lambda: nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(24, 3)),
        _ids,
        ("y",),
        (),
    ),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(50, 4), _ids, ("y",), ()),
    ("RNN", lambda: _Pick(nn.RNN(4, 6, batch_first=True)), _normal(3, 4), ("y",), ()),
    ("GRU", lambda: _Pick(nn.GRU(4, 6, batch_first=True)), _normal(3, 4), ("y",), ()),
    (
        "GRU, two layers, both directions",
        lambda: _Pick(nn.GRU(4, 6, 2, batch_first=True, bidirectional=True)),
        _normal(3, 4),
        ("y",),
        (),
    ),
    (
        "GRU of any length",
        lambda: _Pick(nn.GRU(4, 6, batch_first=True)),
        _normal(5, 4),
        ("y",),
        ("x",),
    ),
    ("GRUCell in a loop", _Cell, _normal(3, 4), ("y",), ()),
    ("LSTM", lambda: _Pick(nn.LSTM(4, 6, batch_first=True)), _normal(3, 4), ("y",), ()),
    (
        "LSTM with a projection",
        lambda: _Pick(nn.LSTM(4, 6, batch_first=True, proj_size=3)),
        _normal(3, 4),
        ("y",),
        (),
    ),
    ("MultiheadAttention", _Attention, _normal(5, 8), ("y",), ()),
    ("scaled_dot_product_attention", _Sdpa, _normal(5, 8), ("y",), ()),
    (
        "TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        _normal(5, 8),
        ("y",),
        (),
    ),
    ("TransformerEncoder", lambda: _encoder(2), _normal(5, 8), ("y",), ()),
    (
        "TransformerEncoder, norm first",
        lambda: _encoder(norm_first=True, activation="gelu"),
        _normal(5, 8),
        ("y",),
        (),
    ),
    ("TransformerEncoder of any length", _encoder, _normal(5, 8), ("y",), ("x",)),
    ("TransformerEncoder with a mask", _Masked, _tokens, ("y",), ("ids", "mask")),
    ("Transformer", _Seq2Seq, _sequences, ("y",), ()),
    ("two inputs and cosine_similarity", _Siamese, _pair, ("y",), ()),
    ("categories and numbers", _Tabular, _mixed, ("y",), ()),
    ("two outputs", _Vae, _normal(6), ("mean", "copy"), ()),
    ("topk", _TopK, _normal(4), ("values", "places"), ()),
    ("Softmax", lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), _normal(4), ("y",), ()),
    (
        "Bilinear activations",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GLU(), nn.Mish(), nn.Hardswish(), nn.Softplus()),
        _normal(4),
        ("y",),
        (),
    ),
)


def module_cases() -> Iterator[Case]:
    """Yield the cases."""
    for name, make, rows, outputs, free in _MODULES:
        kinds = (name.partition(" ")[0].strip(","), "module", "the source model", "the model")
        yield Case(GROUP, name, kinds, partial(_source, make, rows, outputs, free))


def _source(
    make: Callable[[], nn.Module], rows: MakeRows, outputs: tuple[str, ...], free: tuple[str, ...]
) -> Source:
    torch.manual_seed(0)
    module = make().eval()
    for buffer in module.buffers():  # statistics that are not the initial ones
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    judge, fresh = (
        rows(np.random.default_rng(seed), n) for seed, n in ((1, _JUDGE), (2, _ORDINARY))
    )

    def run(asked: Sequence[Row]) -> Arrays:
        inputs = {name: np.stack([row[name] for row in asked]) for name in judge}
        with torch.no_grad():
            found = module(*(torch.from_numpy(array) for array in inputs.values()))
        parts = found if isinstance(found, tuple) else (found,)
        return {name: part.numpy() for name, part in zip(outputs, parts, strict=True)}

    def register(name: str) -> None:
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

        answers = run([_row(judge, 0), _row(judge, 1)])
        example = tuple(array[:2] for array in judge.values())
        log(
            "pytorch",
            module,
            name,
            signature=ModelSignature(
                Schema(
                    [TensorSpec(a.dtype, _shape(a, key in free), key) for key, a in judge.items()]
                ),
                Schema(
                    [
                        TensorSpec(a.dtype, _shape(a, bool(free) and a.ndim == 3), key)
                        for key, a in answers.items()
                    ]
                ),
            ),
            input_example=example if len(example) > 1 else example[0],
            serialization_format="pt2",
        )

    def write(folder: Path) -> Path:
        np.savez(folder / "judge.npz", allow_pickle=False, **judge)
        return folder / "judge.npz"

    ordinary = [_row(fresh, number) for number in range(_ORDINARY)]
    return Source(register, write, ordinary, [*_odd(fresh, free)], run)


def _odd(rows: Arrays, free: tuple[str, ...]) -> Iterator[Row]:
    """Yield the first row with zeros, large, small and impossible values, and other lengths."""
    base = _row(rows, 0)
    for name, value in base.items():
        if value.dtype.kind == "f":
            for factor in (0.0, 1e4, -1e4, 1e30, 1e-30):
                yield {**base, name: value * value.dtype.type(factor)}
            holes = value.copy()
            holes.flat[0] = np.nan
            yield {**base, name: holes}
        elif value.dtype.kind == "i" and not name.startswith("mask"):
            for other in (0, -1, 49, 50, 2**40, -(2**40)):
                changed = np.array(value)
                changed.flat[0] = other
                yield {**base, name: changed}
    if free:
        for length in (1, 2, 3, 4):
            yield {name: v[:length] if name in free else v for name, v in base.items()}


def _row(arrays: Arrays, number: int) -> dict[str, np.ndarray]:
    return {name: np.asarray(array[number]) for name, array in arrays.items()}


def _shape(array: np.ndarray, free: bool) -> tuple[int, ...]:
    return (-1, -1, *array.shape[2:]) if free else (-1, *array.shape[1:])
