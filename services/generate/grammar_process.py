"""Compile grammars for `GrammarProcess`: one line of JSON in, one line of JSON out.

A line is a grammar and the seconds of processor time that it may take. Each is compiled in a fork,
which has the tokenizer already. The system ends the fork when it has used its time: the library
does not return to Python meanwhile. This process ends with
the one that started it, whose end closes its input.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from llguidance import LLTokenizer

from mlctl.core.errors import MlctlError
from mlctl.services.generate.grammars import Grammar, compile_grammar

# Beyond what the process has at the fork; matchers of such a size are kept for later requests.
_MEMORY_BYTES = 256 << 20
_ANSWER_BYTES = 1 << 16


def main(arguments: list[str]) -> None:
    """Answer each line of standard input: "" for a usable grammar, else what is wrong with it.

    The answer is null for one that takes too long or too much memory.
    """
    path, size, *ends = arguments
    source = Path(path).read_text()
    guidance = LLTokenizer(source, n_vocab=int(size), eos_token=[int(end) for end in ends])
    for line in sys.stdin:
        grammar, seconds = json.loads(line)
        print(json.dumps(_compile_apart(Grammar(*grammar), guidance, seconds)), flush=True)


def _compile_apart(grammar: Grammar, guidance: LLTokenizer, seconds: float) -> str | None:
    """Compile in a fork; return what is wrong with the grammar, None if it reached a limit."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit(seconds)
            os.write(sender, _problem(grammar, guidance).encode()[:_ANSWER_BYTES])
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sender)
    with os.fdopen(receiver, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        return answer.decode(errors="replace")
    return None


def _problem(grammar: Grammar, guidance: LLTokenizer) -> str:
    try:
        compile_grammar(grammar, guidance)
    except MlctlError as error:
        return error.message
    return ""


def _limit(seconds: float) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1:])
