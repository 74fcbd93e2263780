"""Models with the structure of real ones, small enough to be exported in a second."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Encoder(nn.Module):
    """Token ids and a mask in; pooled vector and token states out, in a dictionary."""

    def __init__(self, width: int = 8, longest: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.position = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.embedding(ids) + self.position(places)
        states = self.encoder(states, src_key_padding_mask=mask == 0)
        weights = mask[:, :, None].to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return {"tokens": states, "embedding": functional.normalize(pooled)}


class Residual(nn.Module):
    """Two residual blocks with batch norm whose statistics are not the initial ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
            for _ in range(2)
        )
        self.head = nn.Linear(8, 5)
        for block in self.blocks:
            for name, buffer in block.named_buffers():
                if buffer.is_floating_point():
                    buffer.uniform_(0.5, 2 if name.endswith("var") else 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        out: Tensor = self.head(x.mean(dim=(2, 3)))
        return out


class Pixels(nn.Module):
    """Bytes of an image, scaled and normalized by the model itself."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = Residual()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.net(image.float() / 255 - self.mean)
        return out


class Recurrent(nn.Module):
    """An LSTM and a bidirectional GRU over it; states and last state out, as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)

    def forward(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.gru(self.lstm(steps)[0])
        return states, last[0]


class Mixed(nn.Module):
    """A table's row: doubles, flags and a category; a score, a decision and a class out."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(7, 3).double()
        self.net = nn.Linear(9, 3).double()

    def forward(self, numbers: Tensor, flags: Tensor, category: Tensor) -> tuple[Tensor, ...]:
        parts = [numbers, flags.double(), self.category(category)]
        scores = self.net(torch.cat(parts, dim=1))
        return scores, scores[:, 0] > 0, scores.argmax(1)


class Answer(NamedTuple):
    second: Tensor
    first: Tensor


class Named(nn.Module):
    """A named tuple, in another order than the signature's."""

    def forward(self, x: Tensor) -> Answer:
        return Answer(second=x * 2, first=x + 1)


class Nested(nn.Module):
    """Outputs in a nesting that no signature shows."""

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"states": (x * 2, [x * 3]), "loss": None, "last": x + 1}


class ByName(nn.Module):
    """Two inputs of one form, which only their names tell apart."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left - right


class Clashing(nn.Module):
    """Its layers give the inner values the very names that its tensors have outside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.embedding = nn.Embedding(9, 4)

    def forward(self, linear: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        vector = self.embedding(ids)
        return self.linear(linear) + vector, torch.relu(vector)


class Passing(nn.Module):
    """Inputs as outputs, twice, and an input that nothing reads."""

    def forward(self, x: Tensor, unused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        del unused
        return x, x, x * 2


class Writing(nn.Module):
    """Writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x * 2


class Branching(nn.Module):
    """`if` over the values of one row, as torch.cond has to say it."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        return out


class Unrolled(nn.Module):
    """A loop over the sequence whose result does not show its length."""

    def forward(self, steps: Tensor) -> Tensor:
        state = torch.zeros_like(steps[:, 0])
        for at in range(steps.shape[1]):
            state = state / 2 + steps[:, at]
        return state


class FixedLength(nn.Module):
    """A learned weight for each of five steps: no other length can be computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 6.0)[:, None])

    def forward(self, steps: Tensor) -> Tensor:
        return (steps * self.weight).sum(1)


class Image(nn.Module):
    """Fully convolutional, for sides that are a multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 4, stride=4)

    def forward(self, image: Tensor) -> Tensor:
        rows, _, height, width = image.shape
        blocks = image.reshape(rows, 1, height // 4, 4, width // 4, 4).mean(dim=(3, 5))
        out: Tensor = self.down(image).mean(1) + blocks[:, 0]
        return out


class Noisy(nn.Module):
    """Random numbers in forward."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Dropping(nn.Module):
    """Dropout that no mode turns off."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5, training=True)


class Counting(nn.Module):
    """Remembers how often it was called."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class TrainedNorm(nn.Module):
    """Batch norm that uses the statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x[:, None])[:, 0]
        return out


class Touching(nn.Module):
    """Every row shifts a little by the mean of all: `share` says how little."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share * x.mean(dim=0, keepdim=True)


class Clipping(nn.Module):
    """Scales all rows down if any value is above any that the data has."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().max().clamp(min=5.0)


class Summing(nn.Module):
    """A running sum over the rows: the first one knows of no other."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Sorting(nn.Module):
    """An answer for each row and one for the whole batch."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum()
