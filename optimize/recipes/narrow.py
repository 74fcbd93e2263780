"""Rewriting a graph's fp32 arithmetic to fp16, with inputs and outputs left in fp32.

Each fp32 value is made in one type and converted at most once to the other, where a
node reads it; weights are converted here, so that one read by fp32 nodes alone
keeps its bits. The operators' schemas say which of them exist in fp16: the others stay in fp32.
Branches and loop bodies compute in fp16 too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.optimize.recipes import graphs
from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.half import FP16_MAX, is_beyond, to_half

_LISTED = 8
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_TYPE_BY_ATTRIBUTE = frozenset({"Cast", "ConstantOfShape"})
_DTYPE_ATTRIBUTES = frozenset({"dtype", "output_dtype"})
# Their schemas allow 16 bits, but ONNX Runtime has no 16-bit kernels for a reduction.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The rewritten model; of its `nodes` with fp32 values those in `kept` are unchanged."""

    model: Any
    kept: tuple[str, ...]
    nodes: int

    @property
    def settings(self) -> dict[str, str]:
        """The nodes kept in fp32, for a recipe's details."""
        if not self.kept:
            return {"kept in fp32": f"none of {self.nodes} operators"}
        listed = ", ".join(self.kept[:_LISTED]) + (", ..." if len(self.kept) > _LISTED else "")
        return {"kept in fp32": f"{len(self.kept)} of {self.nodes} operators: {listed}"}


def narrow(source: Path, beyond: frozenset[str] = frozenset()) -> Narrowed:
    """Load the fp32 model `source` and rewrite it.

    Nodes that read or write a value named in `beyond`, or a weight that fp16 cannot hold, stay
    in fp32. NotApplicableError if nothing can be rewritten, or the type of a value cannot be
    inferred, as in tree ensembles.
    """
    return _Rewriting(graphs.load_typed(source), beyond).run()


@dataclass(slots=True)
class _Scope:
    """One graph: the type in which each fp32 value is made, and its names by type."""

    graph: Any
    parent: _Scope | None
    kinds: dict[str, int]
    weights: dict[str, Any]
    native: dict[str, int] = field(default_factory=dict)
    forms: dict[tuple[str, int], str] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)

    def chain(self) -> Iterator[_Scope]:
        """Yield this graph and those around it, the nearest first."""
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


class _Rewriting:
    def __init__(self, model: Any, beyond: frozenset[str]) -> None:
        from onnx import TensorProto

        self._model = model
        self._wide = int(TensorProto.FLOAT)
        self._narrow = int(TensorProto.FLOAT16)
        self._beyond = beyond | _weights_beyond(model.graph)
        self._opset = graphs.opset_of(model)
        self._names = graphs.names(model.graph)
        self._outputs = {value.name for value in model.graph.output}
        self._kept: list[str] = []
        self._converted = 0

    def run(self) -> Narrowed:
        self._graph(self._model.graph, None)
        if self._converted == 0:
            limits = (
                ": its values are near 65504, where fp16 ends, or beyond" if self._beyond else ""
            )
            raise NotApplicableError(f"no operator of the model can compute in fp16{limits}")
        graphs.drop_unused_weights(self._model.graph)
        return Narrowed(self._model, tuple(self._kept), self._converted + len(self._kept))

    def _graph(self, graph: Any, parent: _Scope | None) -> None:
        scope = self._scope(graph, parent)
        for node in graph.node:
            self._node(scope, node)
        for output in graph.output:
            if output.type.tensor_type.elem_type != self._wide:
                continue
            if parent is None:
                self._form(scope, output.name, self._wide)
            else:
                output.name = self._form(scope, output.name, self._narrow)
                output.type.tensor_type.elem_type = self._narrow
        del graph.node[:]
        graph.node.extend(scope.nodes)
        del graph.value_info[:]

    def _scope(self, graph: Any, parent: _Scope | None) -> _Scope:
        values = [*graph.input, *graph.value_info, *graph.output]
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        weights = {tensor.name: tensor for tensor in graph.initializer}
        kinds.update((name, tensor.data_type) for name, tensor in weights.items())
        scope = _Scope(graph, parent, kinds, weights)
        for name in weights:
            self._made(scope, name, self._wide)
        for value in graph.input:
            if parent is not None and value.type.tensor_type.elem_type == self._wide:
                value.type.tensor_type.elem_type = self._narrow
            self._made(scope, value.name, self._wide if parent is None else self._narrow)
        return scope

    def _made(self, scope: _Scope, value: str, kind: int) -> str:
        """Record that `value` is made in `kind`, and return its new name."""
        if scope.kinds.get(value) != self._wide:
            return value
        # The model's outputs keep their names, which belong to fp32 values.
        taken = kind == self._narrow and scope.parent is None and value in self._outputs
        scope.native[value] = kind
        scope.forms[value, kind] = self._fresh(value) if taken else value
        return scope.forms[value, kind]

    def _form(self, scope: _Scope, value: str, kind: int) -> str:
        """Return the name of `value` in `kind`, converting it once if needed.

        The cast is in the graph that makes the value, before the node that reads it.
        """
        home = next((outer for outer in scope.chain() if value in outer.native), None)
        if home is None:
            return value
        if (value, kind) not in home.forms:
            if value in home.weights:
                self._convert_weight(home, value)
            else:
                self._cast(home, value, kind)
        return home.forms[value, kind]

    def _convert_weight(self, home: _Scope, value: str) -> None:
        from onnx import numpy_helper

        array = to_half(numpy_helper.to_array(home.weights[value]))
        name = home.forms[value, self._narrow] = self._fresh(value)
        home.graph.initializer.append(numpy_helper.from_array(array, name))

    def _cast(self, home: _Scope, value: str, kind: int) -> None:
        is_output = home.parent is None and value in self._outputs
        name = value if is_output and kind == self._wide else self._fresh(value)
        made = home.forms[value, home.native[value]]
        home.forms[value, kind] = name
        home.nodes.append(_cast_node(made, name, kind))

    def _fresh(self, value: str) -> str:
        """Return an unused name for the other form of `value`."""
        name = f"{value}_fp16"
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _node(self, scope: _Scope, node: Any) -> None:
        has_floats = any(self._is_float(scope, name) for name in (*node.input, *node.output))
        narrow = _is_control_flow(node) or (has_floats and self._can_be_narrow(scope, node))
        if has_floats and narrow:
            self._converted += 1
        elif has_floats:
            self._kept.append(node.name or node.output[0])
        inputs, outputs = self._kinds(node, narrow)
        node.input[:] = [
            self._form(scope, value, kind) for value, kind in zip(node.input, inputs, strict=True)
        ]
        if narrow:
            self._attributes(node)
        for body in graphs.subgraphs(node):
            self._graph(body, scope)
        scope.nodes.append(node)
        for at, (value, kind) in enumerate(zip(list(node.output), outputs, strict=True)):
            node.output[at] = self._made(scope, value, kind)

    def _kinds(self, node: Any, narrow: bool) -> tuple[list[int], list[int]]:
        """Return the new type of each fp32 input and output of the node."""
        if not narrow or _is_control_flow(node):
            kind = self._narrow if narrow else self._wide
            return [kind] * len(node.input), [kind] * len(node.output)
        types = graphs.formal_types(node, self._opset)
        fixed = {"tensor(float)": self._wide}
        kinds = [fixed.get(text, self._narrow) for text, _ in types]
        return kinds[: len(node.input)], kinds[len(node.input) :]

    def _is_float(self, scope: _Scope, value: str) -> bool:
        if not value:
            return False
        kind = next((outer.kinds[value] for outer in scope.chain() if value in outer.kinds), 0)
        if kind == 0:
            makers = (node.op_type for node in scope.graph.node if value in node.output)
            raise NotApplicableError(
                f"the type of the values of {next(makers, value)} cannot be inferred"
            )
        return kind == self._wide

    def _can_be_narrow(self, scope: _Scope, node: Any) -> bool:
        if not self._beyond.isdisjoint((*node.input, *node.output)):
            return False
        if any(attribute.name in _DTYPE_ATTRIBUTES for attribute in node.attribute):
            return False
        if node.op_type in _SCATTERS and _reduces(node):
            return False
        reads = any(self._is_float(scope, value) for value in node.input)
        types = graphs.formal_types(node, self._opset)
        if not (reads or node.op_type in _TYPE_BY_ATTRIBUTE):
            return False
        return all(
            text == "tensor(float)" or "tensor(float16)" in allowed
            for value, (text, allowed) in zip((*node.input, *node.output), types, strict=True)
            if self._is_float(scope, value)
        )

    def _attributes(self, node: Any) -> None:
        """Set fp16 in attributes that determine an output's type."""
        from onnx import helper, numpy_helper

        if node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == self._wide:
                    attribute.i = self._narrow
        if node.op_type == "ConstantOfShape":
            fills = [numpy_helper.to_array(attribute.t) for attribute in node.attribute]
            value = to_half(fills[0] if fills else np.zeros(1, np.float32))
            del node.attribute[:]
            tensor = numpy_helper.from_array(value)
            node.attribute.append(helper.make_attribute("value", tensor))


def _cast_node(value: str, name: str, kind: int) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [value], [name], name=f"{name}_cast", to=kind)


def _weights_beyond(graph: Any) -> frozenset[str]:
    constants = graphs.float_constants(graph)
    return frozenset(name for name, array in constants if is_beyond(array, FP16_MAX))


def _reduces(node: Any) -> bool:
    return any(each.name == "reduction" and each.s != b"none" for each in node.attribute)


def _is_control_flow(node: Any) -> bool:
    return node.op_type in _CONTROL_FLOW and node.domain in {"", "ai.onnx"}
