"""Train a text classifier in seconds and optimize it: `python -m mlctl.examples.reviews`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mlctl.examples.chain import example, register

NAME = "reviews"
LABELS = ("bad", "good")
TRAINING_ROWS, EVALUATION_ROWS, EPOCHS, LENGTH = 600, 300, 4, 24
_WORDS = {
    0: ("awful", "cold", "dirty", "late", "never", "rude", "slow", "stale"),
    1: ("clean", "fast", "fresh", "friendly", "great", "lovely", "quiet", "warm"),
}
_OTHERS = ("the", "room", "food", "was", "and", "staff", "service", "very", "breakfast", "we")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def reviews(rows: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Return texts, and class numbers [rows]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(LABELS), rows)
    texts = []
    for label in labels:
        words = [*rng.choice(_WORDS[int(label)], 2), *rng.choice(_OTHERS, rng.integers(4, 12))]
        rng.shuffle(words)
        texts.append(" ".join(words))
    return texts, labels


def make_tokenizer() -> Any:
    """Return a tokenizer of whole words, as the transformers library wraps it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = (*_SPECIAL, *_WORDS[0], *_WORDS[1], *_OTHERS)
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), _SPECIAL, strict=True))
    wrapper: Any = PreTrainedTokenizerFast  # the library has few types
    return wrapper(tokenizer_object=tokenizer, model_max_length=LENGTH, **marks)


def fit(tokenizer: Any, rows: int = TRAINING_ROWS, epochs: int = EPOCHS) -> Any:
    """Return a small BERT for sequence classification, trained on generated reviews."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    model: Any = BertForSequenceClassification(config)
    texts, labels = reviews(rows, 1)
    tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.train()
    for _ in range(epochs):
        for part in torch.split(torch.randperm(rows), 50):
            optimizer.zero_grad()
            batch = {name: tokens[name][part] for name in ("input_ids", "attention_mask")}
            model(**batch, labels=targets[part]).loss.backward()
            optimizer.step()
    return model.eval()


def train(folder: Path) -> Path:
    """Train and register a version; write the evaluation rows, and return their file."""
    from transformers import pipeline

    tokenizer = make_tokenizer()
    model = pipeline("text-classification", model=fit(tokenizer), tokenizer=tokenizer)
    register("transformers", model, NAME)
    texts, labels = reviews(EVALUATION_ROWS, 2)
    np.savez(folder / "evaluation.npz", text=np.array(texts), labels=labels)
    return folder / "evaluation.npz"


main = example(
    NAME,
    train,
    f"mlctl build {NAME} && mlctl serve {NAME}",
    "curl -H 'content-type: application/json' localhost:3000/predict "
    """-d '[{"text": "the staff was friendly"}]'""",
)

if __name__ == "__main__":
    main()
