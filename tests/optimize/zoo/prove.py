"""What `mlctl optimize` does with a model before any recipe, on a module in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.adapter import order_outputs
from mlctl.optimize.proofs.checks import check_graph, check_parity, check_source
from mlctl.optimize.proofs.export import OPSET
from mlctl.optimize.proofs.independence import is_row_independent
from mlctl.optimize.proofs.reference import TorchReference
from mlctl.services.model.session import open_session

Arrays = dict[str, np.ndarray]
Free = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Proved:
    """A graph that passed every check, and the model it was made of."""

    reference: TorchReference
    path: Path
    signature: Signature
    independent: bool

    def run(self, inputs: Arrays) -> Arrays:
        return open_session(self.path).run(inputs)

    @property
    def operators(self) -> set[str]:
        return {node.op_type for node in onnx.load(str(self.path)).graph.node}


def prove(
    directory: Path, module: torch.nn.Module, inputs: Arrays, outputs: tuple[str, ...], **free: Any
) -> Proved:
    """Check, export and compare `module`; `free` gives dynamic axes behind the first by tensor."""
    signature = signature_of(module, inputs, outputs, free)
    return prove_signature(directory, module, inputs, signature)


def prove_signature(
    directory: Path, module: torch.nn.Module, inputs: Arrays, signature: Signature
) -> Proved:
    """The same with a signature of the test's choice."""
    reference, rows = TorchReference(module.eval(), signature), Rows(inputs, None)
    check_source(reference, signature, rows)
    reference.export(directory, rows.head(3).inputs)
    path = directory / MODEL_NAME
    check_graph(path, signature, OPSET)
    check_parity(reference, open_session(path), signature, rows)
    return Proved(reference, path, signature, is_row_independent(reference, rows))


def rejection(
    directory: Path,
    module: torch.nn.Module,
    inputs: Arrays,
    outputs: tuple[str, ...] = ("y",),
    **free: Any,
) -> MlctlError:
    """The error that `prove` ends with."""
    with pytest.raises(MlctlError) as caught:
        prove(directory, module, inputs, outputs, **free)
    assert caught.value.code in (ErrorCode.EXPORT_FAILED, ErrorCode.UNSUPPORTED_MODEL)
    return caught.value


def signature_of(
    module: torch.nn.Module, inputs: Arrays, outputs: tuple[str, ...], free: Free
) -> Signature:
    """What a user logs: dtypes and sizes as they are, -1 for the rows and the `free` axes."""
    with torch.no_grad():
        answers = module.eval()(*(torch.tensor(array) for array in inputs.values()))
    found = {
        name: tensor.numpy()
        for name, tensor in zip(outputs, order_outputs(answers, outputs), strict=True)
    }
    return Signature(inputs=_specs(inputs, free), outputs=_specs(found, free))


def _specs(arrays: Arrays, free: Free) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=name,
            dtype=Datatype.from_numpy_name(array.dtype.name),
            shape=tuple(
                DYNAMIC if axis in (0, *free.get(name, ())) else size
                for axis, size in enumerate(array.shape)
            ),
        )
        for name, array in arrays.items()
    )
