"""Answers and faults: which message is at fault, and what is never a message's fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.run_errors import ModelRunError
from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import Decoded, Message, StreamUrl
from mlctl.services.stream.scoring import Fault, MessageScorer, OutOfMemoryError
from mlctl.services.tables.bisect import TooManyError


class Numbers:
    """A payload: a message is one or more numbers with spaces between; an answer is their sum."""

    name = "numbers"

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        rejected = {i: "no numbers" for i, each in enumerate(values) if not each.strip()}
        kept = [i for i in range(len(values)) if i not in rejected]
        rows = [[float(word) for word in values[i].split()] for i in kept]
        flat = np.array([each for row in rows for each in row], np.float32)
        return [Decoded({"x": flat}, kept, [len(row) for row in rows], rejected)]

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], _carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        parts = np.split(outputs["y"], np.cumsum(rows)[:-1])
        if not np.isfinite(outputs["y"]).all():
            raise MlctlError(ErrorCode.INTERNAL, "an answer is not finite")
        return [b"%d" % part.sum() for part in parts]


@dataclass
class Doubling:
    """A model: it doubles; fails on 13, or on more than `memory` rows at once."""

    joinable: bool = True
    max_rows: int = 64
    memory: int = 1_000_000
    calls: list[int] = field(default_factory=list)

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return len(inputs["x"])

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = inputs["x"]
        self.calls.append(len(x))
        if min(len(x), self.max_rows) > self.memory:
            raise ModelRunError("it failed") from RuntimeError(
                "Failed to allocate memory for requested buffer"
            )
        if (x == 13).any():
            raise ModelRunError("the model failed on these inputs")
        if (x == 17).any():
            raise MlctlError(ErrorCode.INTERNAL, "a defect of ours")
        if (x == 7).any():
            raise MlctlError(ErrorCode.INVALID_INPUT, "sevens are not taken")
        return {"y": np.where(x == 99, np.nan, 2 * x)}


@pytest.mark.parametrize("joinable", [True, False])
def test_scoring__bad_messages__alone_have_no_answer(joinable: bool) -> None:
    model = Doubling(joinable)
    texts = [b"1", b"2 3", b"", b"4 13 5", b"6", b"7", b"8 9"]
    found = MessageScorer(model, Numbers()).answer(texts)
    assert found.values == [b"2", b"10", None, None, b"12", None, b"34"]
    assert found.faults == {
        2: Fault(ErrorCode.INVALID_INPUT, "no numbers"),
        3: Fault(ErrorCode.INTERNAL, "the model failed on these inputs"),
        5: Fault(ErrorCode.INVALID_INPUT, "sevens are not taken"),
    }


def test_scoring__messages_whose_rows_influence_each_other__are_scored_one_by_one() -> None:
    model = Doubling(joinable=False)
    MessageScorer(model, Numbers()).answer([b"1", b"2 3", b"4 5 6"])
    assert model.calls == [1, 2, 3]


def test_scoring__answer_that_cannot_be_encoded__fails_its_message() -> None:
    found = MessageScorer(Doubling(), Numbers()).answer([b"1", b"99", b"2 3"])
    assert found.values == [b"2", None, b"10"]
    assert found.faults[1].reason == "an answer is not finite"


def test_scoring__only_bad_messages__are_all_dead_letters() -> None:
    found = MessageScorer(Doubling(), Numbers()).answer([b"", b"13"])
    assert found.values == [None, None]
    assert sorted(found.faults) == [0, 1]


def test_scoring__defect_of_mlctl__blames_no_message() -> None:
    with pytest.raises(MlctlError, match="a defect of ours"):
        MessageScorer(Doubling(), Numbers()).answer([b"1", b"17"])


def test_scoring__too_many_bad_messages__ends_the_search() -> None:
    model = Doubling()
    with pytest.raises(TooManyError):
        MessageScorer(model, Numbers()).answer([b"13"] * 1000, max_faults=5)
    assert len(model.calls) < 50


def test_scoring__out_of_memory__calls_get_smaller_and_no_message_is_blamed() -> None:
    model = Doubling(memory=20)
    scorer = MessageScorer(model, Numbers())
    for _ in range(2):
        with pytest.raises(OutOfMemoryError) as caught:
            scorer.answer([b"1"] * 100)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert scorer.shrink()
    assert scorer.answer([b"1"] * 100).values == [b"2"] * 100
    model.max_rows = 1
    assert not scorer.shrink()


def test_scoring__answers_and_dead_letters__have_headers_of_their_origin() -> None:
    stamp = AnswerHeaders(StreamUrl.parse("sqlite:///home/me/events.db#in"), "tiny", "d" * 64)
    messages = [
        Message("0", 5, b"1", b"key"),
        Message("1", 6, b"13", b"other", (("trace", b"t"), ("mlctl-attempts", b"2"))),
    ]
    found = MessageScorer(Doubling(), Numbers()).answer([each.value for each in messages])
    (answer,) = stamp.answers(messages, found)
    headers = dict(answer.headers)
    assert (answer.value, answer.key) == (b"2", b"key")
    assert headers["mlctl-source"] == b"sqlite:in/0/5"
    assert headers["mlctl-digest"] == b"d" * 64
    assert headers["mlctl-model"] == b"tiny"
    assert b"score=" in (headers["mlctl-stages"] or b"")
    (dead,) = stamp.dead(messages, found.faults)
    assert (dead.value, dead.key) == (b"13", b"other")
    assert dict(dead.headers) == {
        "trace": b"t",
        "mlctl-error": b"internal",
        "mlctl-reason": b"the model failed on these inputs",
        "mlctl-attempts": b"3",
        "mlctl-source": b"sqlite:in/1/6",
    }


def test_answer__tombstone__is_a_fault_that_stays_null() -> None:
    scored = MessageScorer(Doubling(), Numbers()).answer([b"1", None, b""])
    assert scored.values == [b"2", None, None]
    assert scored.faults[1].reason.startswith("the message has no value: it is a tombstone")
    assert scored.faults[2].reason == "no numbers"
    message = Message("0", 7, None, b"k", (("own", None), ("mlctl-attempts", None)))
    source = StreamUrl.parse("kafka://broker#rows")
    (letter,) = AnswerHeaders(source, "m", "d").dead([message], {0: scored.faults[1]})
    assert (letter.value, letter.key, letter.headers[0]) == (None, b"k", ("own", None))
    assert dict(letter.headers)["mlctl-attempts"] == b"1"
