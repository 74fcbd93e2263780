"""Tiny text models with a tokenizer of their own, as pipelines of the transformers library."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

WORDS = ["the", "service", "was", "food", "room", "good", "bad", "fine", "awful", "never"]
LENGTH = 16

_CLASSES = {
    "text-classification": ("BertForSequenceClassification", ("bad", "fine", "good")),
    "token-classification": ("BertForTokenClassification", ("O", "B-THING", "I-THING")),
    "feature-extraction": ("BertModel", ("LABEL_0", "LABEL_1")),
}


def sentences(rows: int, seed: int) -> list[str]:
    """Return texts of 1 to 30 words, a word in ten unknown: longer than the model takes."""
    rng = np.random.default_rng(seed)
    words = [*WORDS, "xylophone"]
    return [" ".join(rng.choice(words, rng.integers(1, 31))) for _ in range(rows)]


def texts(rows: int, seed: int) -> np.ndarray:
    """Return sentences as BYTES [rows]."""
    return np.array([text.encode() for text in sentences(rows, seed)], object)


def text_pipeline(task: str) -> Any:
    """Return a pipeline for `task` with random weights."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    library: Any = importlib.import_module("transformers")

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=LENGTH,
    )
    torch.manual_seed(3)
    kind, labels = _CLASSES[task]
    config = library.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        initializer_range=0.5,
        pad_token_id=0,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model = getattr(library, kind)(config).eval()
    return library.pipeline(task, model=model, tokenizer=fast)
