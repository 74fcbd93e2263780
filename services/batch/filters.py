"""`--filter`: a condition on columns, in the syntax of Python, that Arrow evaluates.

Only names, constants, comparisons, `in`, `and`, `or`, `not` and arithmetic are taken; nothing
is ever executed. A name that is no identifier is written col("its name"). As in SQL, a row
for which the condition is null is left out; `x is None` and `x is not None` ask for that.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    import pyarrow as pa

_COMPARISONS: Mapping[type[ast.cmpop], str] = MappingProxyType(
    {
        ast.Eq: "equal",
        ast.NotEq: "not_equal",
        ast.Lt: "less",
        ast.LtE: "less_equal",
        ast.Gt: "greater",
        ast.GtE: "greater_equal",
    }
)
_ARITHMETIC: Mapping[type[ast.operator], str] = MappingProxyType(
    {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
)


class Filter:
    """A condition that was parsed: `columns` are those that it looks at."""

    def __init__(self, text: str) -> None:
        """INVALID_INPUT if `text` is not such a condition."""
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise _refusal(text, "it is not an expression") from error
        self.columns = tuple(dict.fromkeys(self._names(self._tree)))
        if not self.columns:
            raise _refusal(text, "it names no column")

    def keep(self, table: pa.Table) -> np.ndarray:
        """The indices of the rows for which it is true; INVALID_INPUT if types do not fit."""
        import pyarrow as pa
        from pyarrow import compute

        try:
            mask = self._value(self._tree, table)
            if not pa.types.is_boolean(mask.type):
                raise _refusal(self.text, "it is not true or false")
            found = compute.fill_null(mask, False)
        except pa.ArrowException as error:
            raise _refusal(self.text, str(error).splitlines()[0][:200]) from error
        return np.flatnonzero(np.asarray(found))

    def _names(self, node: ast.expr) -> list[str]:
        """The columns named, by a walk that refuses whatever it does not know."""
        match node:
            case ast.Name(id=name):
                return [name]
            case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))]):
                return [name]
            case ast.Constant() | ast.List(elts=[*_]) | ast.Tuple(elts=[*_]):
                return []
            case ast.BoolOp(values=parts):
                return [name for part in parts for name in self._names(part)]
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
                return self._names(inner)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _ARITHMETIC:
                return self._names(left) + self._names(right)
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                return self._names(left) + self._names(right)
            case ast.Compare():
                raise _refusal(self.text, "write a < b < c as a < b and b < c")
        raise _refusal(self.text, f"{ast.unparse(node)} is not taken in a filter")

    def _value(self, node: ast.expr, table: pa.Table) -> Any:
        import pyarrow as pa

        match node:
            case ast.Name(id=name) | ast.Call(args=[ast.Constant(value=str(name))]):
                return table.column(name)
            case ast.Constant(value=value):
                return pa.scalar(cast(Any, value))
            case ast.BoolOp(op=operation, values=parts):
                kind = "and_kleene" if isinstance(operation, ast.And) else "or_kleene"
                return self._joined(kind, parts, table)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return _function("invert")(self._value(inner, table))
            case ast.UnaryOp(operand=inner):
                return _function("negate")(self._value(inner, table))
            case ast.BinOp(left=left, op=operation, right=right):
                made = _function(_ARITHMETIC[type(operation)])
                return made(self._value(left, table), self._value(right, table))
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                return self._compared(left, operation, right, table)
        raise _refusal(self.text, f"{ast.unparse(node)} is not taken in a filter")

    def _joined(self, kind: str, parts: list[ast.expr], table: pa.Table) -> Any:
        value = self._value(parts[0], table)
        for part in parts[1:]:
            value = _function(kind)(value, self._value(part, table))
        return value

    def _compared(
        self, left: ast.expr, operation: ast.cmpop, right: ast.expr, table: pa.Table
    ) -> Any:
        import pyarrow as pa

        value = self._value(left, table)
        if isinstance(operation, ast.In | ast.NotIn):
            wanted = pa.array(self._constants(right)).cast(value.type)
            found = _function("is_in")(value, value_set=wanted)
            return found if isinstance(operation, ast.In) else _function("invert")(found)
        if isinstance(operation, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise _refusal(self.text, "`is` asks only for None")
            return _function("is_null" if isinstance(operation, ast.Is) else "is_valid")(value)
        return _function(_COMPARISONS[type(operation)])(value, self._value(right, table))

    def _constants(self, node: ast.expr) -> list[Any]:
        try:
            found = ast.literal_eval(node)
        except ValueError as error:
            raise _refusal(self.text, "after `in` comes a list of constants") from error
        return list(found) if isinstance(found, list | tuple) else [found]


def _function(name: str) -> Callable[..., Any]:
    from pyarrow import compute

    found: Callable[..., Any] = getattr(compute, name)
    return found


def _refusal(text: str, problem: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"--filter {text!r}: {problem}",
        "Such as: --filter \"age >= 18 and country in ['DE', 'AT'] and score is not None\".",
    )
