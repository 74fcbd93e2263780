"""Networks in the shape of common models for `benchmarks.optimize`, with rows for them.

Weights are random, so that nothing is downloaded: the benchmark measures speed, and the distance
of a variant from its own source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

SEQUENCE = 64
VOCABULARY = 30_522
IMAGE = 224

# Branches of a random residual net drown its input unless they are scaled down.
_BRANCH_SCALE = 0.3

Rows = Callable[[int], Mapping[str, np.ndarray]]


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
    """25.6 million weights in 53 convolutions; [rows, 3, 112, 112] to 1000 values."""
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
            net(torch.from_numpy(pictures(112)(8)["x"]))
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


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or width_in != width:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet18_shaped() -> nn.Module:
    """ResNet-18 for small images; [rows, 3, 32, 32] to 100 values."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU()]
    width_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(width_in, width, stride), Residual(width, width, 1)]
        width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return nn.Sequential(*layers).eval()


def mobilenet_shaped() -> nn.Module:
    """Depthwise and pointwise convolutions, as in MobileNet; [rows, 3, 96, 96] to 100 values."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6()]
    width_in = 32
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers += [
            nn.Conv2d(width_in, width_in, 3, stride, 1, groups=width_in),
            nn.ReLU6(),
            nn.Conv2d(width_in, width, 1),
            nn.ReLU6(),
        ]
        width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, 100)]
    net = nn.Sequential(*layers)
    for layer in net:
        if isinstance(layer, nn.Conv2d):  # or the last layers would see constants
            nn.init.kaiming_normal_(layer.weight)
    return net.eval()


class UNet(nn.Module):
    """Segmentation: down, up with a transposed convolution, and a skip; [rows, 3, 64, 64]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.ReLU())
        self.down = nn.Sequential(
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            nn.ReLU(),
        )
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 4, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.down(first))], 1))  # type: ignore[no-any-return]


def dilated() -> nn.Module:
    """Dilated convolutions over a series, as in WaveNet; [rows, 8, 128] to a forecast of 24."""
    layers: list[nn.Module] = [nn.Conv1d(8, 64, 3, padding=1), nn.ReLU()]
    for number in range(4):
        layers += [nn.Conv1d(64, 64, 3, padding=2**number, dilation=2**number), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(512, 24)]
    return nn.Sequential(*layers).eval()


def dense(*sizes: int) -> nn.Module:
    """Fully connected layers of these sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for size_in, size in pairwise(sizes):
        layers += [nn.Linear(size_in, size), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


class Recommender(nn.Module):
    """Embeddings of a user and an item, joined by a dense net, as in two-tower rankers."""

    def __init__(self, users: int = 50_000, items: int = 20_000, width: int = 64) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.net = dense(2 * width, 512, 256, 16)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([self.users(user), self.items(item)], 1))  # type: ignore[no-any-return]


class TextConvolution(nn.Module):
    """An embedding, a convolution over the words, and the largest of each channel."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.filters = nn.Conv1d(width, 256, 5, padding=2)
        self.head = nn.Linear(256, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.filters(self.words(ids).transpose(1, 2)))
        return self.head(x.amax(2))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An embedding and an LSTM over it; the last state gives the answer."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.words(ids))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches of 8 pixels and four encoder layers, as in ViT; [rows, 3, 64, 64] to 100 values."""

    def __init__(self, width: int = 192, layers: int = 4, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, torch.zeros(1))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Recognizer(nn.Module):
    """Convolutions over a line of text, attention over its steps, and a class for each step.

    The shape of PP-OCR's recognizer; [rows, 3, 32, 160] to probabilities [rows, 40, 2000].
    """

    def __init__(self, width: int = 192, classes: int = 2000) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Conv2d(3, 48, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(96, width, 3, (2, 1), 1),
            nn.ReLU(),
        )
        self.layers = nn.ModuleList(EncoderLayer(width, 6) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.filters(x).mean(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, torch.zeros(1))
        return self.head(x).softmax(-1)  # type: ignore[no-any-return]


def lines(rows: int) -> dict[str, np.ndarray]:
    """Smooth random pictures of a line's shape, float32 [rows, 3, 32, 160]."""
    return {"x": images(rows)["x"][:, :, ::7, :160].copy()}


def pictures(size: int) -> Rows:
    """Return a function that makes smooth pictures of `size` pixels a side."""

    def make(rows: int) -> dict[str, np.ndarray]:
        step = IMAGE // size
        return {"x": images(rows)["x"][:, :, ::step, ::step][:, :, :size, :size].copy()}

    return make


def normal(*shape: int) -> Rows:
    """Return a function that makes normal random values of `shape` a row."""

    def make(rows: int) -> dict[str, np.ndarray]:
        return {"x": np.random.default_rng(3).normal(size=(rows, *shape)).astype(np.float32)}

    return make


def words(rows: int) -> dict[str, np.ndarray]:
    """Random token ids, int64 [rows, 64]."""
    return {"ids": np.random.default_rng(4).integers(1, VOCABULARY, (rows, SEQUENCE))}


def pairs(rows: int) -> dict[str, np.ndarray]:
    """Random numbers of users and items, int64 [rows]."""
    random = np.random.default_rng(5)
    return {"user": random.integers(0, 50_000, rows), "item": random.integers(0, 20_000, rows)}


@dataclass(frozen=True, slots=True)
class Net:
    """A network, its evaluation rows and how many, and the name of its output."""

    name: str
    make: Callable[[], nn.Module]
    rows: Rows
    count: int
    output: str = "embedding"


NETS = (
    Net("dense-shaped", lambda: dense(1024, 3072, 2048, 512), normal(1024), 256),
    Net("forecast-shaped", lambda: dense(96, 256, 256, 24), normal(96), 256),
    Net("recommender-shaped", lambda: Recommender().eval(), pairs, 256),
    Net("text-cnn-shaped", lambda: TextConvolution().eval(), words, 128),
    Net("lstm-shaped", lambda: Recurrent().eval(), words, 128),
    Net("dilated-shaped", dilated, normal(8, 128), 128),
    Net("resnet18-shaped", resnet18_shaped, pictures(32), 96),
    Net("mobilenet-shaped", mobilenet_shaped, pictures(96), 64),
    Net("unet-shaped", lambda: UNet().eval(), pictures(64), 64),
    Net("vit-shaped", lambda: VisionTransformer().eval(), pictures(64), 96),
    Net("resnet50-shaped", resnet50_shaped, pictures(112), 48),
    Net("recognizer-shaped", lambda: Recognizer().eval(), lines, 96),
    Net("minilm-shaped", lambda: Encoder().eval(), tokens, 128),
)
