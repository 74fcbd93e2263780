"""A torch module behind its signature: inputs by position, outputs as one flat tuple.

Modules return tensors, tuples, dictionaries and nestings of them; a graph has a list
of named outputs. The same adapter is run as the reference and exported, so that both
mean the same output by the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlctl.bundle.tensors import Signature
from mlctl.core.errors import ErrorCode, MlctlError

_HINT = "Log the model again with a signature of all that it returns, under its own names."


def adapt(module: Any, signature: Signature) -> Any:
    """Wrap `module`: it takes the signature's inputs in order and returns its outputs in order.

    An eager module whose forward has parameters of the inputs' names is called by name.
    """
    import torch

    names = [spec.name for spec in signature.inputs]
    outputs = [spec.name for spec in signature.outputs]
    by_name = _takes_names(module, names)

    class Adapter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            if by_name:
                return order_outputs(self.module(**dict(zip(names, inputs, strict=True))), outputs)
            return order_outputs(self.module(*inputs), outputs)

    # Not `eval()`: an exported program has its mode frozen in and raises.
    adapter = Adapter()
    adapter.training = False
    return adapter


def order_outputs(outputs: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the tensors in a module's return value, in the order of `names`.

    A mapping or named tuple with exactly these keys is read by key, all else in the order
    of its leaves, without None. UNSUPPORTED_MODEL if the assignment is ambiguous.
    """
    from torch.utils import _pytree as pytree

    keyed = _keyed(outputs)
    if keyed.keys() == set(names):
        values = [keyed[name] for name in names]
    elif keyed.keys() & set(names):
        raise _mismatch(f"the model returns {list(keyed)}, its signature names {list(names)}")
    else:
        values = [value for value in pytree.tree_leaves(outputs) if value is not None]
    if len(values) != len(names):
        raise _mismatch(
            f"the model returns {len(values)} tensors, its signature names {len(names)} outputs"
        )
    for name, value in zip(names, values, strict=True):
        if not _is_tensor(value):
            kind = type(value).__name__
            raise _mismatch(f"output {name!r} of the model is a {kind}, not a tensor")
    return tuple(values)


def _takes_names(module: Any, names: Sequence[str]) -> bool:
    import torch

    # MLflow called it by position when it traced it, regardless of parameter names.
    if isinstance(module, torch.fx.GraphModule):
        return False
    parameters = inspect.signature(module.forward).parameters
    return all(
        name in parameters and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        for name in names
    )


def _keyed(outputs: Any) -> dict[str, Any]:
    """Return the values of a mapping or named tuple by name; empty for others."""
    pairs: Iterable[tuple[str, Any]] = ()
    if isinstance(outputs, Mapping):
        pairs = outputs.items()
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        pairs = zip(outputs._fields, outputs, strict=True)
    return {name: value for name, value in pairs if value is not None}


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _mismatch(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, reason, _HINT)
