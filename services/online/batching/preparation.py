"""What a request for text needs before the model runs: its tokens, and its grammar.

Both take long for some requests. Long prompts are tokenized on a thread of their own, one after the
other; grammars are compiled on two more, each after a process of its own has proved that they can
be: a grammar that is not ready after a moment continues behind the other slow ones, and not before
those that take no time. The event loop waits for none of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from llguidance import LLMatcher

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.grammars import Grammar, unusable
from mlctl.services.generate.text import TextCodec

# A prompt of so many bytes is tokenized in a millisecond.
SHORT_BYTES = 4096
# Grammars that are kept, usable or not. All answers by a grammar share the states of its lexer,
# which grow to tens of MB for a hard one; most grammars are compiled again within milliseconds.
_GRAMMARS = 8
_MAX_CHARS = 1 << 17
# Seconds of processor time: nearly all grammars that people write take a tenth of the first.
_QUICK_SECONDS, _SLOW_SECONDS = 0.1, 1.0
_Result = TypeVar("_Result")


class RequestPreparation:
    """Prepares the requests of one language model. For one event loop."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._texts = ThreadPoolExecutor(1, "tokenizer")
        self._quick = _Compiler(codec, _QUICK_SECONDS)
        self._slow = _Compiler(codec, _SLOW_SECONDS)
        self._grammars: OrderedDict[Grammar, LLMatcher | MlctlError] = OrderedDict()
        self._closed = False
        self._clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, size: int, work: Callable[[], _Result]) -> _Result:
        """Return what `work` on `size` bytes of text returns; on another thread unless short."""
        if size <= SHORT_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    async def compile(self, grammar: Grammar, client: str) -> LLMatcher:
        """Return the matcher of `grammar`, which answers copy; INVALID_INPUT if there is none.

        Each `client` has one compilation at a time; its others wait.
        """
        if len(grammar.source) > _MAX_CHARS:
            raise unusable(grammar.kind, f"it has more than {_MAX_CHARS:,} characters")
        found = self._grammars.get(grammar)
        if found is None:
            async with self._clients.setdefault(client, asyncio.Lock()):
                found = self._grammars.get(grammar)
                if found is None:
                    found = await self._quick.run(grammar) or await self._slow.run(grammar)
                    found = found or unusable(grammar.kind, "it is too complex")
                    self._grammars[grammar] = found
                    if len(self._grammars) > _GRAMMARS:
                        self._grammars.popitem(last=False)
        self._grammars.move_to_end(grammar)
        if isinstance(found, MlctlError):
            raise MlctlError(found.code, found.message, found.hint)
        return found

    def close(self) -> None:
        """End the threads and the process, when what runs has ended."""
        if self._closed:
            return
        self._closed = True
        self._texts.shutdown(wait=False, cancel_futures=True)
        self._quick.close()
        self._slow.close()


class _Compiler:
    """Compiles grammars one after the other, each within `seconds` of processor time."""

    def __init__(self, codec: TextCodec, seconds: float) -> None:
        self._codec = codec
        self._seconds = seconds
        self._process = codec.grammar_process()
        self._thread = ThreadPoolExecutor(1, "grammars")

    async def run(self, grammar: Grammar) -> LLMatcher | MlctlError | None:
        """Return its matcher, or what is wrong with it; None if it takes too much.

        One whose caller is cancelled is not begun.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compile, grammar
        )

    def close(self) -> None:
        """End the thread and the process, when what runs has ended."""
        self._thread.submit(self._process.close)
        self._thread.shutdown(wait=False)

    def _compile(self, grammar: Grammar) -> LLMatcher | MlctlError | None:
        try:
            if not self._process.check(grammar, self._seconds):
                return None
            return self._codec.compile(grammar)
        except MlctlError as error:
            if error.code is not ErrorCode.INVALID_INPUT:
                raise
            return error
