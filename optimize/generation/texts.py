"""Texts to judge a language model on, from a .txt, .jsonl or Parquet file and the like."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, NO_MISSING, Datatype, Signature, TensorSpec
from mlctl.core.os_errors import translate_os_error
from mlctl.optimize.data import MIN_ROWS, EvalData, RowLimits, Rows
from mlctl.optimize.data.check import Pass
from mlctl.optimize.data.load import open_source
from mlctl.optimize.data.source import ColumnMap, invalid

INPUT = "prompt"
COLUMN = "text"
MAX_TEXTS = 128

_SIGNATURE = Signature(
    inputs=(TensorSpec(name=COLUMN, dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
    outputs=(TensorSpec(name="unused", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
)
# Up to 1,000 characters that end at white space, else anywhere.
_PIECE = re.compile(r"\S.{0,999}(?=\s|\Z)|\S.{0,999}", re.DOTALL)


def load_texts(source: str | Path, limits: RowLimits, columns: ColumnMap) -> EvalData:
    """Return texts of up to 1,000 characters as held-out rows of the input `prompt`.

    Longer texts are cut to pieces. Evenly spread over the data, at most `limits.held_out_rows` and
    MAX_TEXTS of them are taken. INVALID_INPUT for fewer than MIN_ROWS.
    """
    pieces = [piece for text in _texts(source, columns) for piece in _PIECE.findall(text)]
    if len(pieces) < MIN_ROWS:
        raise invalid(
            f"the data has {len(pieces)} texts of up to 1,000 characters (minimum {MIN_ROWS})",
            "Give more text: some pages of what the model will be used for.",
        )
    count = min(limits.held_out_rows, MAX_TEXTS, len(pieces))
    index = np.linspace(0, len(pieces) - 1, count).astype(int)
    chosen = np.array([pieces[number].encode() for number in index], dtype=object)
    digest = hashlib.sha256(json.dumps([pieces, count]).encode()).hexdigest()
    return EvalData(
        Rows({INPUT: chosen[:0]}, None), Rows({INPUT: chosen}, None), digest, len(pieces)
    )


def _texts(source: str | Path, columns: ColumnMap) -> Iterator[str]:
    path = Path(source)
    if path.suffix in (".txt", ".jsonl"):
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise invalid(f"{path.name} is not UTF-8 text") from error
        except OSError as error:
            fault = translate_os_error(error) or invalid(f"{path} cannot be read: {error.strerror}")
            raise fault from error
        yield from [content] if path.suffix == ".txt" else _lines(content, path.name, columns)
        return
    rows = Pass(open_source(source, _SIGNATURE, columns=columns), _SIGNATURE, NO_MISSING)
    for chunk in rows.chunks():
        yield from (text.decode() for text in chunk.inputs[COLUMN].flat)


def _lines(content: str, name: str, columns: ColumnMap) -> Iterator[str]:
    (key,) = columns.get(COLUMN, (COLUMN,))[:1]
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[key]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise invalid(
                f"{name}, line {number}: it is not a JSON object with a text in {key!r}",
                f"Name another key with --map {COLUMN}=KEY.",
            )
        yield text
