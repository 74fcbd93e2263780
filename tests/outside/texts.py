"""Cases of text models: small configurations of the transformers library, logged as pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.outside.case import Arrays, Case, Row, Source, log
from tests.support.text_models import LENGTH, WORDS, sentences

GROUP = "transformers"
_ODD = (
    "",
    " ",
    "the",
    "THE SERVICE, was good!",
    "the\u00a0service\twas\ngood",
    "日本語 good naïve İstanbul",
    "e\u0301 \U0001f3d4 good",
    "good " * 300,
    "[CLS] good [SEP] [PAD]",
    "x" * 3000,
)
_SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": LENGTH + 4,
    "pad_token_id": 0,
}
_LABELS: dict[str, Any] = {
    "id2label": {0: "bad", 1: "fine", 2: "good"},
    "label2id": {"bad": 0, "fine": 1, "good": 2},
}
_DISTIL = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "pad_token_id": 0}
# The configurations' arguments that differ from `_SMALL`.
_KINDS: dict[str, dict[str, Any]] = {
    "Bert": {**_SMALL, "num_hidden_layers": 2},
    "DistilBert": {**_DISTIL, "max_position_embeddings": LENGTH + 4},
    "Roberta": _SMALL,
    "XLMRoberta": _SMALL,
    "Electra": {**_SMALL, "embedding_size": 8},
    "Albert": {**_SMALL, "embedding_size": 8},
    "MPNet": _SMALL,
    "Camembert": _SMALL,
    "DebertaV2": {**_SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBert": {**_SMALL, "num_hidden_layers": 2, "global_attn_every_n_layers": 2},
    "RoFormer": {**_SMALL, "embedding_size": 16},
    "MobileBert": {
        **_SMALL,
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "true_hidden_size": 16,
    },
    "ConvBert": {**_SMALL, "embedding_size": 16, "head_ratio": 1},
    "Funnel": {
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 32,
        "block_sizes": [1, 1],
        "num_decoder_layers": 1,
    },
}
_TASKS = {
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "feature-extraction": "Model",
}


def text_cases() -> Iterator[Case]:
    """Yield the cases: BERT for each task, the others for one."""
    for task in _TASKS:
        yield _case("Bert", task)
    for kind in _KINDS:
        if kind != "Bert":
            yield _case(kind, "text-classification")
    yield _case("DistilBert", "feature-extraction")
    yield _case("Bert", "text-classification of several labels", multi=True)
    yield _case("Bert", "fill-mask")
    yield _case("Bert", "zero-shot-classification")


def _case(kind: str, task: str, *, multi: bool = False) -> Case:
    kinds = (kind, task.partition(" ")[0], "label", "the model")
    return Case(GROUP, f"{kind}, {task}", kinds, partial(_source, kind, task, multi))


def _source(kind: str, task: str, multi: bool) -> Source:
    import importlib

    import torch

    library: Any = importlib.import_module("transformers")
    task = task.partition(" ")[0]
    tokenizer = _tokenizer(library)
    torch.manual_seed(3)
    settings = {**_KINDS[kind], **_LABELS, "vocab_size": len(tokenizer), "initializer_range": 0.5}
    if multi:
        settings["problem_type"] = "multi_label_classification"
    config = getattr(library, f"{kind}Config")(**settings)
    heads = {
        **_TASKS,
        "fill-mask": "ForMaskedLM",
        "zero-shot-classification": "ForSequenceClassification",
    }
    model = getattr(library, f"{kind}{heads[task]}")(config).eval()
    pipe = library.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")

    def register(name: str) -> None:
        log("transformers", pipe, name)

    def write(folder: Path) -> Path:
        np.savez(folder / "judge.npz", text=np.array(sentences(24, 1)))
        return folder / "judge.npz"

    rows = [{"text": text} for text in sentences(8, 2)]
    return Source(register, write, rows, [{"text": text} for text in _ODD], _ANSWERS[task](pipe))


def _tokenizer(library: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )


Answer = Callable[[Sequence[Row]], Arrays]


def _classes(pipe: Any) -> Answer:
    labels = list(_LABELS["id2label"].values())

    def answer(rows: Sequence[Row]) -> Arrays:
        found = [pipe(row["text"], truncation=True, top_k=None) for row in rows]
        scores = [{each["label"]: each["score"] for each in one} for one in found]
        probabilities = np.array([[one[label] for label in labels] for one in scores], np.float32)
        best = np.empty(len(rows), object)
        best[:] = [labels[index].encode() for index in probabilities.argmax(1)]
        return {"probabilities": probabilities, "label": best}

    return answer


def _entities(pipe: Any) -> Answer:
    def answer(rows: Sequence[Row]) -> Arrays:
        found = np.empty(len(rows), object)
        lowest = np.ones(len(rows), np.float32)
        for number, row in enumerate(rows):
            tokens = pipe.preprocess(row["text"], truncation=True)
            entities = pipe(row["text"]) if row["text"].strip() else []
            del tokens
            lowest[number] = min([float(each["score"]) for each in entities], default=1.0)
            found[number] = json.dumps(
                [
                    {"entity": each["entity"], "start": each["start"], "end": each["end"]}
                    for each in entities
                ]
            ).encode()
        return {"entities": found, "min_score": lowest}

    return answer


def _mean(pipe: Any) -> Answer:
    def answer(rows: Sequence[Row]) -> Arrays:
        states = [np.asarray(pipe(row["text"], truncation=True)[0], np.float32) for row in rows]
        return {"embedding": np.stack([each.mean(0) for each in states])}

    return answer


def _unknown(_pipe: Any) -> Answer:
    def answer(_rows: Sequence[Row]) -> Arrays:
        raise NotImplementedError("no answer of this task is compared")

    return answer


_ANSWERS: dict[str, Callable[[Any], Answer]] = {
    "text-classification": _classes,
    "token-classification": _entities,
    "feature-extraction": _mean,
    "fill-mask": _unknown,
    "zero-shot-classification": _unknown,
}
