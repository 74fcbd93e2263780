"""What a user's arrays are: which one feeds which input, which one holds the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bundle.tensors import Signature, TensorSpec
from optimize.data.source import invalid
from registry.names import printable, suggestion

LABEL_NAMES = ("labels", "label", "y")
_SINGLE_INPUT_NAMES = ("x", "inputs")


@dataclass(frozen=True, slots=True)
class Columns:
    """The array of each input, by the array's name, and the name of the labels' array."""

    inputs: Mapping[str, TensorSpec]
    labels: str | None


def find_columns(names: Iterable[str], signature: Signature) -> Columns:
    """Tell the arrays apart; INVALID_INPUT for one that is missing, unknown or ambiguous.

    The only input may be called `x` or `inputs`. An array that is neither an input nor
    labels is refused: it is most often one of them misspelt.
    """
    known = sorted(names)
    inputs = {_input_name(spec, known, signature): spec for spec in signature.inputs}
    rest = [name for name in known if name not in inputs]
    labels = [name for name in rest if name in LABEL_NAMES]
    if len(labels) > 1:
        raise invalid(f"labels are given twice: as {' and as '.join(map(repr, labels))}")
    if unknown := [name for name in rest if name not in LABEL_NAMES]:
        wanted = [spec.name for spec in signature.inputs] + ["labels"]
        near = suggestion(unknown[0], wanted, "the model takes")
        raise invalid(
            f"array {printable(unknown[0])!r} is neither an input nor labels; {near}",
            "Rename the array, or leave it out of the data.",
        )
    return Columns(inputs, labels[0] if labels else None)


def _input_name(spec: TensorSpec, known: list[str], signature: Signature) -> str:
    names = (spec.name, *_SINGLE_INPUT_NAMES) if len(signature.inputs) == 1 else (spec.name,)
    found = next((name for name in names if name in known), None)
    if found is None:
        near = suggestion(spec.name, known, "it has")
        raise invalid(f"no array for input {spec.name!r} in the data; {near}")
    return found
