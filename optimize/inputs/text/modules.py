"""Encoders with the outputs that their transform reads, the same for any length of the padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MaskedLogits(nn.Module):
    """Scores of each token's classes, 0 for padding, and the tokens' positions as they came in.

    A transform gets the model's outputs alone, so the positions in the text pass through the model.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = self.encoder(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits * attention_mask[:, :, None].to(logits.dtype), positions + 0


class MeanState(nn.Module):
    """The mean of the last states over a text's tokens, without padding: [rows, width]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        states: Tensor = found.last_hidden_state
        weights = attention_mask[:, :, None].to(states.dtype)
        return (states * weights).sum(1) / torch.clamp(weights.sum(1), min=1.0)
