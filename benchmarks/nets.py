"""Networks in the shape of ResNet-50 and MiniLM for `benchmarks.optimize`, with rows for them.

Weights are random, so that nothing is downloaded: the benchmark measures speed, and the distance
of a variant from its own source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

SEQUENCE = 64
VOCABULARY = 30_522
IMAGE = 224

# Branches of a random residual net drown its input unless they are scaled down.
_BRANCH_SCALE = 0.3


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut, as in ResNet-50 (He et al., 2015)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        width_out = 4 * width
        self.branch = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width_out, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        nn.init.constant_(self.branch[-1].weight, _BRANCH_SCALE)  # type: ignore[arg-type]
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet50_shaped() -> nn.Module:
    """25.6 million weights in 53 convolutions; [rows, 3, 224, 224] to 1000 scores."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width_in = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(width_in, width, stride if block == 0 else 1))
            width_in = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, 1000)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for _ in range(3):  # running statistics of the batch norms
            net(torch.from_numpy(images(8)["x"]))
    return net.eval()


class Encoder(nn.Module):
    """Six layers of 384 with 12 heads and 36 weighted products: MiniLM-L6 (Wang et al., 2020)."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.positions(position))
        keep = mask[:, None, None, :].to(x.dtype)
        bias = (1.0 - keep) * -10_000.0
        for layer in self.layers:
            x = layer(x, bias)
        weights = mask[:, :, None].to(x.dtype)
        pooled = (x * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return nn.functional.normalize(pooled)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward net, each with a residual and a norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        q, k, v = (
            each(x).reshape(shape).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(shape[3]) + bias
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(rows, length, width)
        x = self.first(x + self.out(mixed))
        hidden = nn.functional.gelu(self.wide(x))
        return self.second(x + self.narrow(hidden))  # type: ignore[no-any-return]


def images(rows: int) -> dict[str, np.ndarray]:
    """Smooth random pictures, float32 [rows, 3, 224, 224]: a few waves of random direction."""
    random = np.random.default_rng(1)
    y, x = np.mgrid[0:IMAGE, 0:IMAGE].astype(np.float32) / IMAGE
    out = np.zeros((rows, 3, IMAGE, IMAGE), np.float32)
    for row in range(rows):
        for channel in range(3):
            level, *waves = random.normal(size=(4, 4))
            out[row, channel] = level[0]
            for a, b, phase, height in waves:
                out[row, channel] += height * np.sin(6 * (a * x + b * y) + 3 * phase)
    return {"x": out}


def tokens(rows: int) -> dict[str, np.ndarray]:
    """Random token ids, int64 [rows, 64], and masks of random length."""
    random = np.random.default_rng(2)
    length = random.integers(8, SEQUENCE + 1, rows)
    mask = (np.arange(SEQUENCE)[None] < length[:, None]).astype(np.int64)
    ids = random.integers(1, VOCABULARY, (rows, SEQUENCE)) * mask
    return {"ids": ids.astype(np.int64), "mask": mask}


@dataclass(frozen=True, slots=True)
class Net:
    """A network, its evaluation rows and how many, and the name of its output."""

    name: str
    make: Callable[[], nn.Module]
    rows: Callable[[int], Mapping[str, np.ndarray]]
    count: int
    output: str


NETS = (
    Net("resnet50-shaped", resnet50_shaped, images, 48, "logits"),
    Net("minilm-shaped", lambda: Encoder().eval(), tokens, 128, "embedding"),
)
