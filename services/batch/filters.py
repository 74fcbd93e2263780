"""`--filter`: a condition on columns in Python's syntax, evaluated by Arrow.

Accepts names, constants, comparisons, `in`, `and`, `or`, `not` and arithmetic, and executes
nothing. A name that is not an identifier is written col("its name"). As in SQL, a row for which the
condition is null is skipped; `x is None` and `x is not None` test for null.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError

_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.And: operator.and_,
        ast.Or: operator.or_,
    }
)


class Filter:
    """A parsed condition; `columns` are those that it names."""

    def __init__(self, text: str) -> None:
        """Parse `text`; INVALID_INPUT if it is not a condition."""
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise self._error("it is not an expression") from error
        names: dict[str, None] = {}
        self._build(self._tree, names)
        self.columns = tuple(names)
        if not self.columns:
            raise self._error("it names no column")

    def expression(self) -> Any:
        """Return the condition as an expression of Arrow, which readers use to skip row groups."""
        return self._build(self._tree, {})

    def check_names(self, names: Sequence[str]) -> None:
        """Raise INVALID_INPUT for a column that is not there, or is there twice."""
        for name in self.columns:
            if names.count(name) != 1:
                problem = "more than one" if name in names else "no"
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"--filter: there is {problem} column {name!r}; "
                    f"columns: {', '.join(names[:20])}",
                )

    def check(self, schema: pa.Schema) -> None:
        """Raise INVALID_INPUT for columns as `check_names` does, or types that do not fit."""
        self.check_names(schema.names)
        columns = {name: pa.array([], schema.field(name).type) for name in self.columns}
        self.apply(pa.table(columns))

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows for which the condition is true; INVALID_INPUT if types do not fit."""
        try:
            return table.filter(self.expression())
        except (pa.ArrowException, TypeError) as error:
            raise self._error(str(error).splitlines()[0][:200]) from error

    def _build(self, node: ast.expr, names: dict[str, None]) -> Any:
        """Return the expression of `node`, and add the columns that it names to `names`."""
        from pyarrow import compute

        match node:
            case (
                ast.Name(id=name)
                | ast.Call(
                    func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]
                )
            ):
                names[name] = None
                return compute.field(name)
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return compute.scalar(value)
            case ast.BoolOp(op=operation, values=[first, *others]):
                found = self._build(first, names)
                for each in others:
                    found = _OPERATIONS[type(operation)](found, self._build(each, names))
                return found
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return ~self._build(inner, names)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return compute.negate(self._build(inner, names))
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
                return _OPERATIONS[type(operation)](
                    self._build(left, names), self._build(right, names)
                )
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                return self._compare(self._build(left, names), operation, right, names)
            case ast.Compare():
                raise self._error("write a < b < c as a < b and b < c")
        raise self._error(f"{ast.unparse(node)} is not supported in a filter")

    def _compare(
        self, value: Any, operation: ast.cmpop, right: ast.expr, names: dict[str, None]
    ) -> Any:
        if isinstance(operation, ast.In | ast.NotIn):
            found = value.isin(self._constants(right))
            return found if isinstance(operation, ast.In) else ~found
        if isinstance(operation, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._error("`is` compares only with None")
            return value.is_null() if isinstance(operation, ast.Is) else value.is_valid()
        return _OPERATIONS[type(operation)](value, self._build(right, names))

    def _constants(self, node: ast.expr) -> list[Any]:
        try:
            found = ast.literal_eval(node)
        except ValueError as error:
            raise self._error("`in` needs a list of constants") from error
        return list(found) if isinstance(found, list | tuple) else [found]

    def _error(self, problem: str) -> MlctlError:
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--filter {self.text!r}: {problem}",
            "Such as: --filter \"age >= 18 and country in ['DE', 'AT'] and score is not None\".",
        )
