"""What is wrong with a caller's grammar, in our words: the library's are for its developers.

Pure. The library's message decides which sentence is given. Only names and expressions of the
caller's own are taken from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence

from mlctl.services.protocol.wire import shown

TOO_DEEP = "it is nested deeper than 124 levels of objects and arrays"
_UNKNOWN = "it has a form that is not supported"
# Sentences by patterns of the library's messages, whose groups they show. The first one that
# matches counts.
_SENTENCES: Mapping[str, str] = {
    r"^Invalid type: (.*)": "the type {} does not exist",
    r"^Unknown format: (.*)": "the format {} is not supported; leave it out, or use 'pattern'",
    r"^Expected .* for '(\$?\w+)'": "the value of {} has a wrong type",
    r"^(\$?\w+) must be an? (?!object or)": "the value of {} has a wrong type",
    r"^schema must be an object": "a schema in it is neither an object nor true or false",
    r"^Pointer '(.*)' does not exist": "there is no {} in it, to which a $ref refers",
    r"^Resource '(.*?)' is not": "it refers to {}; refer only to '#/$defs/NAME'",
    r"^Invalid URI": "a $ref or $id in it is not a URI",
    r"^circular references": "a $ref leads back to itself and has other keywords beside it",
    r"^oneOf constraints": "options of 'oneOf' are supported only if no value can have two of "
    "them; use 'anyOf'",
    r"(?:integer|float) range": "a bound of a number is too large; leave it out",
    r"(?i)multiple ?of": "'multipleOf' must be a number above 0 with few digits",
    r"(\w+) \(\S+\) is greater than (\w+) \(": "{} is greater than {}",
    r"required property '(.*)' is": "the required property {} has no possible value",
    r"^Unsatisfiable schema|NoExtension": "nothing matches it",
    r"patternProperty": "a name could match two of its 'patternProperties'",
    r"^min/maxProperties": "'minProperties' and 'maxProperties' are supported only if all "
    "properties are required",
    r"^recursion limit": TOO_DEEP,
    r"^decimal literal": "a length or a number of repetitions in it is too large",
    r"look-?around": "look-around, word boundaries, and ^ and $ inside are not supported",
    r"^backreferences": "references to groups are not supported",
    r"nested parentheses": "its parentheses are nested too deep",
    r"max is|limit|too (?:big|large|complex|many)|fuel|exceed": "it is too complex",
}
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
# What follows a regular expression in the library's message, and the expression with the mark below
# it at the character that is wrong.
_REASON = re.compile(r"^error: (.*)", re.MULTILINE)
_NEAR_CHARS = 20
_MARKED = re.compile(r"^    (.*)\n    ( *)\^", re.MULTILINE)
# The library's limit on what may come next in an answer, and how much of it an object takes beside
# its properties, and for each of them: as long as all may be left out, up to the first required
# one, and after that.
_MAX_NEXT, _OBJECT = 2000, 8
_FREE, _BEFORE, _AFTER = 4, 3, 1
# Keywords whose values are data and no schemas.
_DATA = frozenset({"const", "default", "enum", "examples"})


def explain(problem: str) -> str:
    """Return our sentence for the library's message about a grammar."""
    if (found := _UNIMPLEMENTED.match(problem)) is not None:
        names = ", ".join(map(shown, json.loads(found[1])))
        return f"it has keywords that are not supported: {names}"
    reasons = _REASON.findall(problem)
    reason = reasons[-1] if reasons else problem
    for pattern, sentence in _SENTENCES.items():
        if (found := re.search(pattern, reason)) is not None:
            return sentence.format(*map(shown, found.groups()))
    if reasons and (found := _MARKED.search(problem)) is not None:
        at = len(found[2])
        near = found[1][at : at + _NEAR_CHARS]
        return f"the syntax of a regular expression is wrong at character {at + 1}, at {near!r}"
    return _UNKNOWN


def check_regex(regex: str) -> str:
    """Return what is wrong with a regular expression that the library would take; "" if nothing."""
    backslashes = len(regex) - len(regex.rstrip("\\"))  # it drops a lone one
    return "a regular expression ends with a lone backslash" if backslashes % 2 else ""


def check_schema(schema: str) -> str:
    """Return what is wrong with a schema that the library would take; "" if nothing.

    An answer fails in the middle if an object has more properties than the library can write.
    """
    waiting = [json.loads(schema)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += [value for key, value in node.items() if key not in _DATA]
            names, required, regex = map(node.get, ("properties", "required", "pattern"))
            problem = check_regex(regex) if isinstance(regex, str) else ""
            if not problem and isinstance(names, dict):
                listed = required if isinstance(required, list) else []
                known = {name for name in listed if isinstance(name, str)}
                problem = _check_number(list(names), known)
            if problem:
                return problem
    return ""


def _check_number(names: Sequence[str], required: Container[str]) -> str:
    """Return what is wrong with the number of the properties `names`, "" if nothing is."""
    first = next((at for at, name in enumerate(names) if name in required), None)
    free = len(names) if first is None else first
    limit = (_MAX_NEXT - _OBJECT) // (_FREE if first is None else _BEFORE)
    if free > limit:
        what = "optional properties" if first is None else "properties before a required one"
        return f"an object of it has {free} {what} (limit {limit}); make some required"
    limit = (_MAX_NEXT - _OBJECT) // _AFTER
    if len(names) - free > limit:
        return f"an object of it has {len(names)} properties (limit {limit})"
    return ""
