r"""Convert vectorizers and TfidfTransformer so that tokens and weights are scikit-learn's.

skl2onnx splits words at every letter beyond ASCII, removes texts instead of stop words, and lowers
text by a locale that few machines have. `C.UTF-8` is built into the C library. ONNX Runtime's
regular expressions know no Unicode in `\w` and `\s`; the classes here are those of Python's `re`.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import numpy as np

from mlctl.optimize.inputs.estimators.converters.emit import Emitter, keep_width

_LOCALE = "C.UTF-8"
_WORD = r"[\pL\pN_]"
_SPACES = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# A tokenizer pads rows with it. It is no word, and longer than a character.
_PAD = "\ue000\ue000"
# Words of a minimum length: `(?u)\b\w\w+\b` and its like.
_WORDS = re.compile(r"(?:\(\?u\))?\\b((?:\\w)*)\\w(?:\+|\{(\d+),\})\\b")
# Patterns that both libraries read alike: classes of ASCII characters, repeated.
_PLAIN = re.compile(r"[A-Za-z0-9_@#'\[\]{}+,^-]+")


def register_text() -> None:
    """Replace skl2onnx's converters in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from sklearn.feature_extraction.text import (
        CountVectorizer,
        TfidfTransformer,
        TfidfVectorizer,
    )

    for model in (CountVectorizer, TfidfVectorizer):
        alias = f"Mlctl{model.__name__}"
        update_registered_converter(model, alias, _infer_shape, _convert, overwrite=True)
    update_registered_converter(
        TfidfTransformer, "MlctlTfidfTransformer", keep_width, _convert_weights, overwrite=True
    )


def _infer_shape(operator: Any) -> None:
    from skl2onnx.common.data_types import DoubleTensorType

    width = len(operator.raw_operator.vocabulary_)
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = DoubleTensorType([rows, width])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = operator.raw_operator
    _reject(model)
    emit = Emitter(scope, operator, container)
    emit.double = True
    texts = emit.node("Reshape", operator.inputs[0].full_name, emit.constant(np.array([-1])))
    if model.lowercase:
        texts = emit.node(
            "StringNormalizer", texts, case_change_action="LOWER", locale=_LOCALE, op_version=10
        )
    tokens = (
        _words(emit, model, texts)
        if model.analyzer == "word"
        else _characters(emit, texts, in_words=model.analyzer == "char_wb")
    )
    # A text without tokens gets one that is in no vocabulary.
    column = emit.node("Reshape", texts, emit.constant(np.array([-1, 1])))
    padding = emit.node("StringConcat", emit.constant(np.array([_PAD], object)), column)
    found = emit.cast(_count(emit, model, emit.node("Concat", tokens, padding, axis=1)))
    if model.binary:
        found = emit.cast(emit.node("Greater", found, emit.number([0])))
    if isinstance(model, TfidfVectorizer):
        found = _weigh(emit, model, found)
    emit.node("Identity", found, into=operator.outputs[0].full_name)


def _convert_weights(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.operator_converters.common import concatenate_variables

    emit = Emitter(scope, operator, container)
    counts = concatenate_variables(scope, operator.inputs, container)
    found = _weigh(emit, operator.raw_operator, counts)
    emit.node("Identity", found, into=operator.outputs[0].full_name)


def _reject(model: Any) -> None:
    """Raise NotImplementedError for settings that no graph can express, with their names."""
    name = type(model).__name__
    for setting in ("strip_accents", "preprocessor", "tokenizer"):
        if getattr(model, setting) is not None:
            raise NotImplementedError(f"{name}({setting}=…) has no ONNX form; leave it out")
    if model.analyzer not in ("word", "char", "char_wb"):
        raise NotImplementedError(f"{name} with an analyzer of your own has no ONNX form")
    if model.analyzer == "char_wb" and min(map(len, model.vocabulary_)) < 2:
        raise NotImplementedError(
            f'{name}(analyzer="char_wb") counts single characters; let ngram_range begin at 2'
        )


def _tokens(emit: Emitter, texts: str, pattern: str) -> str:
    found = emit.node(
        "Tokenizer",
        texts,
        op_domain="com.microsoft",
        op_version=1,
        mark=0,
        mincharnum=1,
        pad_value=_PAD,
        tokenexp=pattern,
    )
    return emit.declare_text(found)


def _words(emit: Emitter, model: Any, texts: str) -> str:
    """Emit the words [rows, words] without stop words, which no phrase contains."""
    found = _tokens(emit, texts, _word_pattern(model))
    stop = sorted(model.get_stop_words() or ())
    if not stop or model.ngram_range[1] == 1:
        return found
    is_stop = emit.node(
        "LabelEncoder",
        found,
        op_domain="ai.onnx.ml",
        op_version=2,
        keys_strings=stop,
        values_int64s=[1] * len(stop),
        default_int64=0,
    )
    # Stop words go behind all others, which keep their order.
    shape = emit.node("Shape", found)
    one = emit.constant(np.array([1]))
    count = emit.node("Gather", shape, one)
    total = emit.node("Squeeze", count)
    place = emit.node("Range", emit.constant(np.array(0)), total, emit.constant(np.array(1)))
    order = emit.node("Add", place, emit.node("Mul", is_stop, count))
    sorted_ = emit.pair("TopK", order, count, axis=1, largest=0, sorted=1)[1]
    kept = emit.node("Where", emit.node("Cast", is_stop, to=9), emit.constant(_text(_PAD)), found)
    return emit.node("GatherElements", kept, sorted_, axis=1)


def _word_pattern(model: Any) -> str:
    pattern = model.token_pattern
    if match := _WORDS.fullmatch(pattern):
        least = match[1].count("w") + int(match[2] or 1)
        return f"{_WORD}{{{least},}}"
    if _PLAIN.fullmatch(pattern) and not re.fullmatch(pattern, ""):
        return str(pattern)
    raise NotImplementedError(
        f"{type(model).__name__}(token_pattern={pattern!r}) has no ONNX form; use the default "
        r"(?u)\b\w\w+\b, or classes of characters such as [a-z]+"
    )


def _characters(emit: Emitter, texts: str, *, in_words: bool) -> str:
    """Emit the characters [rows, characters]; a run of spaces is one space.

    In words, a space stands before and behind each word; no term has one between two letters.
    """
    if in_words:
        space = emit.constant(_text(" "))
        texts = emit.node("StringConcat", emit.node("StringConcat", space, texts), space)
        spaces = f"{_SPACES}+"
    else:
        spaces = f"{_SPACES}{{2,}}"
    found = _tokens(emit, texts, f"{spaces}|(?s:.)")
    run = emit.node("RegexFullMatch", found, pattern=spaces)
    return emit.node("Where", run, emit.constant(_text(" ")), found)


def _count(emit: Emitter, model: Any, tokens: str) -> str:
    """Emit how often each term of the vocabulary occurs, [rows, terms]."""
    terms = [
        _split(model, term) for term, _ in sorted(model.vocabulary_.items(), key=lambda x: x[1])
    ]
    order = sorted(range(len(terms)), key=lambda at: len(terms[at]))
    lengths = [len(terms[at]) for at in order]
    pool: list[str] = []
    starts = [0] * lengths[-1]
    for length, group in groupby(order, key=lambda at: len(terms[at])):
        starts[length - 1 :] = [len(pool)] * (lengths[-1] - length + 1)
        for at in group:
            pool += terms[at]
        starts[length:] = [len(pool)] * (lengths[-1] - length)
    return emit.node(
        "TfIdfVectorizer",
        tokens,
        op_version=9,
        mode="TF",
        min_gram_length=lengths[0],
        max_gram_length=lengths[-1],
        max_skip_count=0,
        pool_strings=pool,
        ngram_counts=starts,
        ngram_indexes=order,
    )


def _split(model: Any, term: str) -> list[str]:
    """Return the tokens of a term of the vocabulary."""
    if model.analyzer != "word":
        return list(term)
    parts = term.split(" ")
    if not len(parts) <= model.ngram_range[1] or not all(parts):
        raise NotImplementedError(f"the term {term!r} cannot be split into its words")
    return parts


def _weigh(emit: Emitter, model: Any, counts: str) -> str:
    """Emit what TfidfTransformer makes of counts."""
    zero = emit.number([0])
    if model.sublinear_tf:
        seen = emit.node("Greater", counts, zero)
        scaled = emit.node("Add", emit.node("Log", counts), emit.number([1]))
        counts = emit.node("Where", seen, scaled, counts)
    if model.use_idf:
        counts = emit.node("Mul", counts, emit.number(model.idf_))
    if model.norm is None:
        return counts
    axis = emit.constant(np.array([1]))
    length = emit.node("ReduceL2" if model.norm == "l2" else "ReduceL1", counts, axis, keepdims=1)
    nothing = emit.node("Equal", length, zero)
    return emit.node("Div", counts, emit.node("Where", nothing, emit.number([1]), length))


def _text(value: str) -> np.ndarray:
    return np.array([value], object)
