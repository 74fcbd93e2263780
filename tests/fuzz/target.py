"""What is fuzzed, and what counts as a finding.

A target takes any bytes. It may refuse them with an `MlctlError` of the codes that it names;
every other exception is a finding, and so is one input that takes seconds or hundreds of MiB.
"""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from mlctl.core.errors import ErrorCode, MlctlError

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
MAX_CPU_SECONDS = 5.0
MAX_GROWTH_KIB = 300 << 10

# Says in a word what was answered; raises for what was refused.
Feed = Callable[[bytes], str]
# Where an input led to: the word, or the lines of ours at which it was refused.
Way = tuple[str, ...]


class FindingError(Exception):
    """An input did what none may do."""


@dataclass(frozen=True, slots=True)
class Target:
    """`opened` gives the function under test for as long as it is held; `structured` are
    inputs that come further than raw bytes would; `refusals` are the codes it may answer.
    """

    name: str
    opened: Callable[[], AbstractContextManager[Feed]]
    structured: SearchStrategy[bytes]
    refusals: frozenset[ErrorCode]

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def seeds(self) -> list[bytes]:
        """The kept inputs, the former findings among them."""
        return [path.read_bytes() for path in sorted(self.corpus.iterdir())]


def examine(target: Target, feed: Feed, data: bytes) -> Way:
    """Feed one input; where it led to. Raises FindingError."""
    began, size = time.process_time(), _peak_kib()
    try:
        way: Way = (feed(data),)
    except MlctlError as error:
        if error.code not in target.refusals or not error.message:
            raise FindingError(f"refused as {error.code}: {error.message}") from error
        way = _way(error)
    except FindingError:
        raise
    except Exception as error:
        raise FindingError(f"{type(error).__name__}: {error}") from error
    if (took := time.process_time() - began) > MAX_CPU_SECONDS:
        raise FindingError(f"it took {took:.1f} s of CPU")
    if (grown := _peak_kib() - size) > MAX_GROWTH_KIB:
        raise FindingError(f"it took {grown >> 10} MiB")
    return way


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _way(error: MlctlError) -> Way:
    return tuple(
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(ROOT)
    )
