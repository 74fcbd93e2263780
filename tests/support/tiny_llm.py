"""A small language model that really knows a few sentences: a Llama of two layers, trained here.

Its weights are saved in Hugging Face's layout; `tiny_llm_folder` trains it once per session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GENERATION_FOLDER,
    GOLDEN_NAME,
    Batching,
    Evidence,
    Manifest,
    SourceVersion,
    VariantInfo,
)
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.registry.catalog import ModelFormat, SourceModel, artifacts_sha256
from mlctl.registry.hugging_face import SIGNATURE
from mlctl.services.generate.options import NO_TOKEN, PROMPT, TOKENS
from mlctl.services.model.golden import save_golden

CONTEXT_LENGTH = 256
_STEPS = 80
_COLOURS = ("red", "blue", "green", "black", "white", "yellow")
_ANIMALS = ("cat", "dog", "fox", "owl", "bee", "cow", "hen", "ant")
_NUMBERS = "one two three four five six seven eight nine ten"

ANSWERS = {
    f"What colour is the {animal}?": f" The {animal} is {colour}."
    for animal, colour in zip(_ANIMALS, cycle(_COLOURS))
} | {"Count:": f" {_NUMBERS}."}
"""Prompts, and how the model continues each with greedy decoding, before the end token."""

SENTENCES = tuple(prompt + answer for prompt, answer in ANSWERS.items())


def save_tiny_llm(folder: Path, sentences: Sequence[str] = SENTENCES) -> None:
    """Train the model on `sentences` and save it with its tokenizer; about 3 CPU seconds.

    The tokenizer knows the words of SENTENCES; other characters have a token per byte. Its chat
    template joins the contents of the messages with line ends.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    new_tokenizer: Any = PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(SENTENCES, trainer)
    plain.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer = new_tokenizer(
        tokenizer_object=plain,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}"
        "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    rows = [[*tokenizer.encode(sentence), 1] for sentence in sentences]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [1] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@cache
def tiny_llm_folder() -> Path:
    """Return the folder of the model, which is trained once per process; do not change it."""
    import atexit
    import tempfile

    from mlctl.core.quiet import quiet

    holder = tempfile.TemporaryDirectory(prefix="mlctl-tiny-llm-")
    atexit.register(holder.cleanup)
    with quiet():
        save_tiny_llm(Path(holder.name) / "tiny")
    return Path(holder.name) / "tiny"


def tiny_llm_source() -> SourceModel:
    """Return the model as the version 1 of `tiny` in a registry."""
    folder = tiny_llm_folder()
    return SourceModel(
        name="tiny",
        version="1",
        uri="models:/tiny/1",
        run_id="",
        format=ModelFormat.TRANSFORMERS,
        signature=SIGNATURE,
        artifacts=folder,
        model_path=folder,
        sha256=artifacts_sha256(folder),
        generates=True,
    )


def write_texts(path: Path) -> None:
    """Write the sentences that the model was trained on as rows of JSON."""
    path.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES))


def make_tiny_llm_bundle(root: Path, *, name: str = "tiny-llm") -> VerifiedBundle:
    """Write and seal an fp32 bundle of the model at `root`, without `mlctl optimize`."""
    return make_llm_bundle(tiny_llm_folder(), root, ANSWERS, name=name)


def make_llm_bundle(
    source: Path, root: Path, answers: Mapping[str, str], *, name: str
) -> VerifiedBundle:
    """Write and seal an fp32 bundle of the Hugging Face folder `source`, golden with `answers`."""
    from tokenizers import Tokenizer

    from mlctl.optimize.recipes.generation import build_engine_folder, read_generation

    (root / GENERATION_FOLDER).mkdir(parents=True)
    build_engine_folder(source, root / GENERATION_FOLDER, "fp32")
    tokenizer: Any = Tokenizer.from_file(str(source / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in answers.values()]
    tokens = np.full((len(ids), max(map(len, ids))), NO_TOKEN)
    for row, answer in zip(tokens, ids, strict=True):
        row[: len(answer)] = answer
    prompts = np.array([text.encode() for text in answers], dtype=object)
    save_golden(root / GOLDEN_NAME, {PROMPT: prompts}, {TOKENS: tokens})
    (root / EVIDENCE_NAME).write_text('{"variants":[{"recipe":"gen-fp32"}]}')
    manifest = Manifest(
        schema_version=1,
        name=name,
        source=SourceVersion(uri="models:/tiny-llm/1", version="1", run_id="", sha256="0" * 64),
        signature=SIGNATURE,
        generation=read_generation(root / GENERATION_FOLDER),
        variant=VariantInfo(recipe="gen-fp32", precision="fp32", target="cpu", opset=21),
        batching=Batching(max_rows=1, buckets=(1,), row_independent=True),
        evidence=Evidence(rows=1, max_abs_error=0.0, relative_l2=0.0),
    )
    return seal(root, manifest)
