"""The engine of continuous batching, on a small model that knows nine sentences."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from mlctl.bundle.manifest import GENERATION_FOLDER
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.decoder import Decoder
from mlctl.services.generate.engine import (
    ContinuousBatch,
    FinishReason,
    GenerationRequest,
    Sequence,
    TokenPiece,
    complete,
)
from mlctl.services.generate.grammars import Grammar
from mlctl.services.generate.sampling import Sampler, TokenSampling, token_logprobs
from mlctl.services.generate.text import StopStrings, TextCodec
from tests.support.tiny_llm import ANSWERS

pytestmark = pytest.mark.slow
GREEDY = TokenSampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tiny_llm_bundle: VerifiedBundle) -> Path:
    return tiny_llm_bundle.root / GENERATION_FOLDER


@pytest.fixture(scope="module")
def codec(tiny_llm_bundle: VerifiedBundle, folder: Path) -> TextCodec:
    assert tiny_llm_bundle.manifest.generation is not None
    return TextCodec(folder, tiny_llm_bundle.manifest.generation)


def engine(folder: Path, codec: TextCodec, slots: int = 4, max_tokens: int = 64) -> ContinuousBatch:
    return ContinuousBatch(Decoder(folder, slots, max_tokens), codec, (1,))


def ask(codec: TextCodec, prompt: str, **options: object) -> GenerationRequest:
    values = {"max_tokens": 30, "sampling": GREEDY, **options}
    return GenerationRequest(tuple(codec.encode(prompt)), **values)  # type: ignore[arg-type]


def test_engine__more_requests_than_slots__each_gets_the_answer_it_gets_alone(
    folder: Path, codec: TextCodec
) -> None:
    requests = [ask(codec, prompt) for prompt in ANSWERS]

    answers = complete(engine(folder, codec), requests)

    assert [answer.text for answer in answers] == list(ANSWERS.values())
    assert {answer.finish for answer in answers} == {FinishReason.STOP}


def test_engine__a_sequence_ends__a_waiting_one_joins_at_the_next_step(
    folder: Path, codec: TextCodec
) -> None:
    batch = engine(folder, codec, slots=2)
    short = Sequence(ask(codec, "Count:", max_tokens=2), codec)
    long, late = (Sequence(ask(codec, "Count:"), codec) for _ in range(2))
    for each in (short, long, late):
        batch.add(each)
    steps = [batch.step() for _ in range(3)]

    assert [[sequence for sequence, _ in step.pieces] for step in steps] == [
        [short, long],
        [short, long],
        [late, long],
    ]


def answers_of(batch: ContinuousBatch, sequences: list[Sequence]) -> tuple[list[str], list[int]]:
    """Run all steps; return the answers, and the step in which each of them ended."""
    texts, ends = [""] * len(sequences), [0] * len(sequences)
    steps = 0
    while batch.busy:
        steps += 1
        for sequence, piece in batch.step().pieces:
            texts[sequences.index(sequence)] += piece.text
            if piece.finish is not None:
                ends[sequences.index(sequence)] = steps
    return texts, ends


def test_engine__one_client_holds_all_slots__another_gets_one_at_once(
    folder: Path, codec: TextCodec
) -> None:
    batch = engine(folder, codec, slots=2)
    greedy = [Sequence(ask(codec, "Count:"), codec, "greedy") for _ in range(5)]
    for each in greedy:
        batch.add(each)
    for _ in range(4):
        batch.step()
    other = Sequence(ask(codec, "Count:", max_tokens=3), codec, "other")
    batch.add(other)
    joined = batch.step().joined
    again = batch.step().joined

    texts, ends = answers_of(batch, [*greedy, other])
    assert joined == [other]
    assert again == []  # one pause, and no more
    assert ends[-1] == 1
    # What was paused continues before the client's others.
    assert sorted(ends[:2]) == sorted(ends)[1:3]
    assert ANSWERS["Count:"].endswith(texts[0])
    assert texts[2:5] == [ANSWERS["Count:"]] * 3


def test_engine__an_answer_is_paused__it_continues_as_if_it_had_not_been(
    folder: Path, codec: TextCodec
) -> None:
    batch = engine(folder, codec, slots=2)
    mine = [Sequence(ask(codec, prompt), codec, "mine") for prompt in list(ANSWERS)[:2]]
    for each in mine:
        batch.add(each)
    texts = dict.fromkeys(mine, "")
    joined: list[Sequence] = []
    for step in range(100):
        if step == 5:
            batch.add(Sequence(ask(codec, "Count:", max_tokens=2), codec, "other"))
        result = batch.step()
        joined += result.joined
        for sequence, piece in result.pieces:
            if sequence in texts:
                texts[sequence] += piece.text
    assert not batch.busy
    assert sum(each in mine for each in joined) == 3  # one of them was paused
    assert list(texts.values()) == list(ANSWERS.values())[:2]


def test_engine__more_clients_than_slots__take_turns(
    folder: Path, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.services.generate.engine.TURN_TOKENS", 4)
    batch = engine(folder, codec, slots=1)
    clients = [Sequence(ask(codec, "Count:"), codec, f"client {n}") for n in range(3)]
    for each in clients:
        batch.add(each)
    joined = [sequence for _ in range(13) for sequence in batch.step().joined]

    assert joined == [*clients, clients[0]]
    texts, _ = answers_of(batch, clients)
    assert all(texts)
    assert not batch.busy


def test_engine__a_long_answer__is_paused_later_because_more_is_read_again(
    folder: Path, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.services.generate.engine.TURN_TOKENS", 1)
    batch = engine(folder, codec, slots=1)
    long = Sequence(ask(codec, "Count:" * 6), codec, "long")
    size = len(long.tokens)
    batch.add(long)
    batch.add(Sequence(ask(codec, "Count:", max_tokens=2), codec, "short"))
    steps = 0
    while batch.step().joined != [long]:
        steps += 1
    assert size >= 8
    while long.slot is not None:
        batch.step()
    assert long.turn >= size // 4


def test_engine__a_sequence_is_removed__its_slot_is_free_at_the_next_step(
    folder: Path, codec: TextCodec
) -> None:
    batch = engine(folder, codec, slots=1)
    leaves, waits = (Sequence(ask(codec, "Count:"), codec) for _ in range(2))
    batch.add(leaves)
    batch.add(waits)
    batch.step()

    batch.remove(leaves)

    assert batch.cached_tokens == 0
    assert [sequence for sequence, _ in batch.step().pieces] == [waits]
    batch.remove(waits)
    assert not batch.busy
    assert batch.cached_tokens == 0


def test_engine__long_prompt_is_read__others_get_a_token_at_each_step(
    folder: Path, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.services.generate.engine.PREFILL_TOKENS", 16)
    batch = engine(folder, codec, slots=3, max_tokens=256)
    quick = Sequence(ask(codec, "Count:"), codec)
    batch.add(quick)
    batch.step()
    long = Sequence(ask(codec, "What colour is the cat?" * 20, max_tokens=4), codec)
    short = Sequence(ask(codec, "What colour is the dog?"), codec)
    batch.add(long)
    batch.add(short)

    steps = [[sequence for sequence, _ in batch.step().pieces] for _ in range(3)]

    assert all(quick in step for step in steps)
    assert short in steps[1]
    assert long not in steps[0] + steps[1] + steps[2]


@pytest.mark.parametrize(
    ("stops", "text"),
    [((" nine",), " one two three four five six seven eight"), (("o th", "two"), " one ")],
)
def test_engine__stop_string__the_answer_ends_before_it(
    folder: Path, codec: TextCodec, stops: tuple[str, ...], text: str
) -> None:
    (answer,) = complete(engine(folder, codec), [ask(codec, "Count:", stop=stops)])

    assert (answer.text, answer.finish) == (text, FinishReason.STOP)


def test_stop_strings__part_of_one_comes__it_is_held_back_until_decided() -> None:
    stops = StopStrings(["END"])

    assert [stops.step(piece) for piece in ("a E", "N", "x EN")] == [
        ("a ", False),
        ("", False),
        ("ENx ", False),
    ]
    assert stops.rest() == "EN"


def test_engine__sampling_with_a_seed__repeats_and_differs_from_another_seed(
    folder: Path, codec: TextCodec
) -> None:
    def draw(seed: int) -> str:
        sampling = TokenSampling(temperature=5.0, top_k=50, top_p=0.95, seed=seed)
        return complete(engine(folder, codec), [ask(codec, "Count:", sampling=sampling)])[0].text

    assert draw(1) == draw(1) != draw(2)


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        (TokenSampling(temperature=0), {2}),
        (TokenSampling(top_k=1), {2}),
        (TokenSampling(top_k=2), {1, 2}),
        (TokenSampling(top_p=0.5), {2}),
        (TokenSampling(top_p=0.7), {1, 2}),
        (TokenSampling(temperature=100.0), {0, 1, 2, 3}),
    ],
)
def test_sampler__limits__draw_only_the_tokens_within_them(
    sampling: TokenSampling, tokens: set[int]
) -> None:
    logits = np.log(np.array([0.05, 0.25, 0.6, 0.1], np.float32))
    sampler = Sampler(sampling)

    assert {sampler.pick(logits) for _ in range(300)} == tokens


def test_sampler__probabilities__tokens_are_drawn_in_their_proportion() -> None:
    weights = np.array([0.05, 0.25, 0.6, 0.1])
    sampler = Sampler(TokenSampling(seed=0))
    logits = np.log(weights).astype(np.float32)

    drawn = np.bincount([sampler.pick(logits) for _ in range(20_000)]) / 20_000

    np.testing.assert_allclose(drawn, weights, atol=0.02)  # 5 standard deviations


def test_logprobs__a_distribution__are_its_logarithms() -> None:
    found = token_logprobs(np.log(np.array([0.1, 0.7, 0.2], np.float32)), 2, 2)

    assert found.chosen == pytest.approx(np.log(0.2))
    assert [token for token, _ in found.top] == [1, 2]
    assert found.top[0][1] == pytest.approx(np.log(0.7))


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", "[ab]{3}", r"[ab]{3}"),
        (
            "json_schema",
            '{"type":"array","items":{"enum":[1,2]},"minItems":2,"maxItems":2}',
            r"\[\s*[12]\s*,\s*[12]\s*\]",
        ),
    ],
)
def test_engine__grammar__the_answer_matches_it(
    folder: Path, codec: TextCodec, kind: Literal["json_schema", "regex"], source: str, pattern: str
) -> None:
    request = ask(codec, "Count:", grammar=codec.compile(Grammar(kind, source)))
    (answer,) = complete(engine(folder, codec), [request])

    assert re.fullmatch(pattern, answer.text)
    assert answer.finish is FinishReason.STOP


@pytest.mark.parametrize(("kind", "source"), [("json_schema", '{"type":"x"}'), ("regex", "[a")])
def test_grammar__invalid__is_rejected_with_the_reason(
    codec: TextCodec, kind: Literal["json_schema", "regex"], source: str
) -> None:
    with pytest.raises(MlctlError, match=f"the {kind} cannot be used: ") as caught:
        codec.compile(Grammar(kind, source))

    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_engine__grammar_is_beyond_the_limits_of_a_step__the_answer_fails_and_does_not_end(
    folder: Path, codec: TextCodec
) -> None:
    options = [
        {"type": "object", "properties": {f"{letter}{number}": {} for number in range(400)}}
        for letter in "ab"
    ]
    schema = json.dumps({"anyOf": options})
    batch = engine(folder, codec)
    batch.add(
        Sequence(ask(codec, "a", grammar=codec.compile(Grammar("json_schema", schema))), codec)
    )

    result = batch.step()
    while batch.busy:
        result = batch.step()

    ((_, error),) = result.failed
    assert error.code is ErrorCode.INVALID_INPUT
    assert "the grammar is too complex" in error.message


def test_check__prompt_and_answer_beyond_the_cache__is_rejected(
    folder: Path, codec: TextCodec
) -> None:
    batch = engine(folder, codec, max_tokens=64)

    with pytest.raises(
        MlctlError, match="maximum context length is 64 tokens, and the prompt has 60 and its"
    ) as caught:
        batch.check(GenerationRequest((1,) * 60, 5))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    with pytest.raises(MlctlError, match="prompt is empty"):
        batch.check(GenerationRequest((), 5))
    batch.check(GenerationRequest((1,) * 60, 4))


def test_engine__a_run_fails__its_sequences_fail_and_the_next_are_answered(
    folder: Path, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = engine(folder, codec)
    failing = Sequence(ask(codec, "Count:"), codec)
    batch.add(failing)
    batch.step()
    with monkeypatch.context() as broken:
        broken.setattr(Decoder, "decode", lambda *_: 1 / 0)
        result = batch.step()

    assert [sequence for sequence, _ in result.failed] == [failing]
    assert not batch.busy
    assert complete(batch, [ask(codec, "Count:")])[0].text == ANSWERS["Count:"]


def test_pieces__characters_of_several_tokens__come_whole(codec: TextCodec) -> None:
    pieces = codec.pieces()
    tokens = codec.encode("héllo → €", special=False)

    assert "".join(map(pieces, tokens)) == "héllo → €"
    assert TokenPiece("", None, None, None).text == ""


def test_chat_template__reaches_beyond_the_messages__is_rejected(
    tiny_llm_bundle: VerifiedBundle, folder: Path, tmp_path: Path
) -> None:
    """The template comes with the model, from anywhere."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1]() }}")
    assert tiny_llm_bundle.manifest.generation is not None
    codec = TextCodec(tmp_path, tiny_llm_bundle.manifest.generation)

    with pytest.raises(MlctlError, match="the chat template rejects the messages") as caught:
        codec.render_chat([{"role": "user", "content": "a"}])
    assert caught.value.code is ErrorCode.INVALID_INPUT
