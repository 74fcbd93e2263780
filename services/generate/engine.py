"""Continuous batching: sequences join and leave the running batch at every step.

Each step reads at most `PREFILL_TOKENS` tokens of prompts, in turns, so that a long prompt delays
the others by one part of it at a time. Then it appends one token to every sequence whose prompt has
been read. No clock and no threads: the caller runs the steps, and adds and removes sequences
between them. Equal requests in equal order give equal answers.

The slots are divided among clients, not among requests: a free one goes to the client that has the
fewest, in turns. A client that has none takes one from the client that has the most, or, where each
has one, from the answer that has grown longest without a pause. The paused sequence continues when
its client's turn comes: its tokens are read again, as after a prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.decoder import Decoder
from mlctl.services.generate.sampling import Sampler, TokenLogprobs, TokenSampling, token_logprobs
from mlctl.services.generate.text import ContextLengthError, StopStrings, TextCodec
from mlctl.services.model.run_errors import ModelRunError

# Prompt tokens in one step: enough to use the processor well, and little time for a small model.
PREFILL_TOKENS = 256
# An answer is paused for another client's after so many tokens at the earliest, and a quarter as
# many as will have to be read again: else a server of long conversations would only read.
TURN_TOKENS = 64
_TURN_SHARE = 4


class FinishReason(StrEnum):
    """Why an answer ended: the model or a stop string ended it, or it reached its length."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt's tokens and how to continue it.

    `max_tokens` bounds the answer. `grammar` comes from `TextCodec.compile`. `logprobs` is the
    number of alternatives to report with each token; None reports no probabilities.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: TokenSampling = field(default_factory=TokenSampling)
    stop: tuple[str, ...] = ()
    grammar: LLMatcher | None = None
    logprobs: int | None = None


class TokenPiece(NamedTuple):
    """What one step adds to an answer: a token, and the text that is certain by now.

    `token` is None for a piece that only ends the answer. Text may be empty, inside a character or
    at what may become a stop string. The last piece has `finish`. `offset` is where the token's
    text begins in the answer, in characters.
    """

    text: str
    token: int | None
    logprobs: TokenLogprobs | None
    finish: FinishReason | None
    offset: int = 0


class Sequence:
    """One request of a client: waiting, then in a slot of the KV cache, perhaps paused; removed."""

    def __init__(self, request: GenerationRequest, codec: TextCodec, client: str = "") -> None:
        self.request = request
        self.client = client
        self.slot: int | None = None
        self.tokens = list(request.prompt)  # and those of the answer
        self.length = 0  # tokens in the KV cache
        self.generated = 0
        self.turn = 0  # tokens generated since it got its slot
        self._chars = 0  # of the answer
        self._sampler = Sampler(request.sampling)
        self._text = codec.pieces()
        self._stops = StopStrings(request.stop)
        self._constraint = None if request.grammar is None else codec.constrain(request.grammar)

    def choose(self, logits: np.ndarray, eos_ids: Container[int]) -> TokenPiece:
        """Choose the next token from its `logits` [vocabulary]."""
        allowed = logits if self._constraint is None else self._constraint.apply(logits)
        token = self._sampler.pick(allowed)
        self.generated += 1
        self.turn += 1
        if token in eos_ids:
            return TokenPiece(self._stops.rest(), None, None, FinishReason.STOP)
        self.tokens.append(token)
        top = self.request.logprobs
        logprobs = None if top is None else token_logprobs(logits, token, top)
        offset, added = self._chars, self._text(token)
        self._chars += len(added)
        text, stopped = self._stops.step(added)
        finish = None
        if stopped or (self._constraint is not None and self._constraint.accept(token)):
            finish = FinishReason.STOP
        elif self.generated == self.request.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None and not stopped:
            text += self._stops.rest()
        return TokenPiece(text, token, logprobs, finish, offset)


class StepResult(NamedTuple):
    """What one step did: sequences that got a slot, pieces of answers, and failures."""

    joined: list[Sequence]
    pieces: list[tuple[Sequence, TokenPiece]]
    failed: list[tuple[Sequence, MlctlError]]
    cached_tokens: int = 0


class ContinuousBatch:
    """The sequences of one decoder. Use it from one thread at a time."""

    def __init__(self, decoder: Decoder, codec: TextCodec, eos_ids: Items[int]) -> None:
        self.codec = codec
        self._decoder = decoder
        self._eos_ids = frozenset(eos_ids)
        # By client, in the order of the clients' turns.
        self._waiting: dict[str, deque[Sequence]] = {}
        self._slots: list[Sequence | None] = [None] * decoder.slots
        self._prefilling: deque[Sequence] = deque()

    @property
    def max_tokens(self) -> int:
        """The limit on a prompt with its answer, in tokens."""
        return self._decoder.max_tokens

    @property
    def cached_tokens(self) -> int:
        """The tokens that the KV cache holds."""
        return sum(sequence.length for sequence in self._slots if sequence is not None)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting) or any(self._slots)

    def check(self, request: GenerationRequest) -> None:
        """INVALID_INPUT for an empty prompt, ContextLengthError for too long a one."""
        size = len(request.prompt)
        if not size:
            raise MlctlError(ErrorCode.INVALID_INPUT, "the prompt is empty")
        if size + request.max_tokens > self.max_tokens:
            raise ContextLengthError(
                self.max_tokens,
                f"the prompt has {size} and its answer may have {request.max_tokens}",
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, whose request passed `check`."""
        self._waiting.setdefault(sequence.client, deque()).append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; its slot is free for the next step. Nothing if it has ended."""
        queue = self._waiting.get(sequence.client, ())
        if sequence in queue:
            self._waiting[sequence.client].remove(sequence)
            if not queue:
                del self._waiting[sequence.client]
        elif sequence.slot is not None:
            self._leave_slot(sequence, sequence.slot)

    def step(self) -> StepResult:
        """Read parts of prompts, and append one token to each sequence that is past its prompt."""
        result = StepResult(self._admit(), [], [])
        rows = [None if each in self._prefilling else each for each in self._slots]
        self._prefill(result)
        self._decode(rows, result)
        return result._replace(cached_tokens=self.cached_tokens)

    def _admit(self) -> list[Sequence]:
        """Give slots to the clients that have the fewest; return the sequences that got one."""
        joined = []
        while self._waiting:
            held = Counter(each.client for each in self._slots if each is not None)
            client = min(self._waiting, key=held.__getitem__)  # the first of several
            if None not in self._slots and not (held[client] == 0 and self._pause_one(held)):
                break
            queue = self._waiting.pop(client)
            sequence = queue.popleft()
            if queue:
                self._waiting[client] = queue  # the last in turn
            sequence.slot, sequence.turn = self._slots.index(None), 0
            self._slots[sequence.slot] = sequence
            self._prefilling.append(sequence)
            joined.append(sequence)
        return joined

    def _pause_one(self, held: Counter[str]) -> bool:
        """Free a slot for a client that has none, where that is fair; return whether it is.

        `held` are the slots by client.
        """
        running = [each for each in self._slots if each is not None]
        client, most = held.most_common(1)[0]
        if most > 1:
            paused = min(
                (each for each in running if each.client == client),
                key=lambda each: len(each.tokens),
            )
        else:
            paused = max(running, key=lambda each: each.turn)
            if paused.turn < max(TURN_TOKENS, len(paused.tokens) // _TURN_SHARE):
                return False
        assert paused.slot is not None
        self._leave_slot(paused, paused.slot)
        self._waiting.setdefault(paused.client, deque()).appendleft(paused)
        return True

    def _leave_slot(self, sequence: Sequence, slot: int) -> None:
        self._slots[slot] = sequence.slot = None
        sequence.length = 0
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)

    def _prefill(self, result: StepResult) -> None:
        budget = PREFILL_TOKENS
        while self._prefilling and budget:
            sequence = self._prefilling.popleft()
            assert sequence.slot is not None
            part = sequence.tokens[sequence.length : sequence.length + budget]
            budget -= len(part)
            try:
                logits = self._decoder.prefill(sequence.slot, part, sequence.length)
            except Exception as error:  # noqa: BLE001 - its caller gets it
                self._fail(sequence, error, result)
                continue
            sequence.length += len(part)
            if sequence.length < len(sequence.tokens):
                self._prefilling.append(sequence)
            else:
                self._choose(sequence, logits, result)

    def _decode(self, rows: list[Sequence | None], result: StepResult) -> None:
        running = [slot for slot, row in enumerate(rows) if row is not None]
        if not running:
            return
        part = slice(running[0], running[-1] + 1)
        tokens = [0 if row is None else row.tokens[-1] for row in rows[part]]
        lengths = [0 if each is None else each.length for each in self._slots[part]]
        try:
            logits = self._decoder.decode(part.start, tokens, lengths)
        except Exception as error:  # noqa: BLE001 - the callers get it
            for row in filter(None, rows):
                self._fail(row, error, result)
            return
        for sequence, found in zip(rows[part], logits, strict=True):
            if sequence is not None:
                sequence.length += 1
                self._choose(sequence, found, result)

    def _choose(self, sequence: Sequence, logits: np.ndarray, result: StepResult) -> None:
        try:
            piece = sequence.choose(logits, self._eos_ids)
        except Exception as error:  # noqa: BLE001 - its caller gets it
            self._fail(sequence, error, result)
            return
        result.pieces.append((sequence, piece))
        if piece.finish is not None:
            self.remove(sequence)

    def _fail(self, sequence: Sequence, error: Exception, result: StepResult) -> None:
        failure: MlctlError
        if isinstance(error, MlctlError):  # its grammar
            failure = error
        else:
            failure = ModelRunError("the model failed")
            failure.__cause__ = error
        self.remove(sequence)
        result.failed.append((sequence, failure))


class Completion(NamedTuple):
    """A whole answer, and why it ended."""

    text: str
    finish: FinishReason


def complete(batch: ContinuousBatch, requests: Items[GenerationRequest]) -> list[Completion]:
    """Answer all `requests` and return their answers in order; for jobs, checks and tests."""
    sequences = [Sequence(request, batch.codec) for request in requests]
    texts: dict[Sequence, list[str]] = {sequence: [] for sequence in sequences}
    ends: dict[Sequence, FinishReason] = {}
    for sequence in sequences:
        batch.check(sequence.request)
        batch.add(sequence)
    while batch.busy:
        result = batch.step()
        for _, error in result.failed:
            raise error
        for sequence, piece in result.pieces:
            texts[sequence].append(piece.text)
            if piece.finish is not None:
                ends[sequence] = piece.finish
    return [Completion("".join(texts[each]), ends[each]) for each in sequences]
