"""Values as YAML: every string keeps its type and stays on one line, whatever it holds."""

from __future__ import annotations

import math
import re

import yaml  # type: ignore[import-untyped]

# Words that no reader of YAML takes for a number, a boolean or an indicator.
_PLAIN = re.compile(r"/?[A-Za-z][\w./-]+", re.ASCII)
_STRING_TAG = "tag:yaml.org,2002:str"


def yaml_value(value: object) -> str:
    """Return a string, number or boolean as YAML that is valid wherever a value may stand.

    A string is written without quotes only if it is a plain word; all others are in double quotes,
    with line breaks and other control characters escaped. TypeError for any other type.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return str(value) if _is_plain(value) else _quoted(value)
    raise TypeError(f"a template inserted a value of type {type(value).__name__}")


def _is_plain(text: str) -> bool:
    resolved = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))
    return _PLAIN.fullmatch(text) is not None and resolved == _STRING_TAG


def _quoted(text: str) -> str:
    written: str = yaml.safe_dump(str(text), default_style='"', width=math.inf)
    return written.removesuffix("\n")
