"""The typed `/predict` as BentoML declares it, for its pages and clients.

Of several models the first is at `/predict`, and each at `/predict/NAME`. `PredictApp` answers the
calls. A supervisor and a build import this, and not what answers.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
from pydantic import create_model

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.services.layout.bento_layout import ModelIdentity

ROUTE = "/predict"
M = TypeVar("M", bound=ModelIdentity)


def predict_routes(models: Sequence[M]) -> dict[str, M]:
    """Return the paths of the typed APIs: the default model's, and each one's own of several."""
    routes = {ROUTE: models[0]}
    if len(models) > 1:
        routes |= {f"{ROUTE}/{model.name}": model for model in models}
    return routes


def argument_names(specs: Iterable[TensorSpec]) -> dict[str, str]:
    """Return a distinct Python identifier for each tensor name."""
    names: dict[str, str] = {}
    for spec in specs:
        plain = re.sub(r"\W", "_", spec.name)
        if not plain.isidentifier() or keyword.iskeyword(plain) or plain in ("self", "ctx"):
            plain = f"tensor_{plain}"
        while plain in names.values():
            plain += "_"
        names[spec.name] = plain
    return names


def declare_predict(model: ModelIdentity, route: str = ROUTE) -> Any:
    """Return the declaration of the API of `model` for BentoML, at the path `route`."""
    import bentoml

    names = argument_names(model.signature.inputs)
    output = _output_type(model.signature)
    types = {names[spec.name]: _array_type(spec) for spec in model.signature.inputs}

    async def predict(_self: Any, /, **_arguments: Any) -> NoReturn:
        raise NotImplementedError("PredictApp answers the calls")

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(name, kind, annotation=of) for name, of in types.items()]
    signature = inspect.Signature(parameters, return_annotation=output)
    predict.__signature__ = signature  # type: ignore[attr-defined]
    predict.__annotations__ = {**types, "return": output}
    predict.__doc__ = f"Score with model {model.name} (digest {model.digest})."
    return bentoml.api(route=route)(predict)


def _output_type(signature: Signature) -> Any:
    import bentoml

    if len(signature.outputs) == 1:
        return _array_type(signature.outputs[0])
    names = argument_names(signature.outputs)
    fields: dict[str, Any] = {
        names[spec.name]: (_array_type(spec), ...) for spec in signature.outputs
    }
    # BentoML's base class knows how to describe and send arrays; pydantic's own does not.
    return create_model("Outputs", __base__=bentoml.IODescriptor, **fields)


def _array_type(spec: TensorSpec) -> Any:
    from bentoml.validators import DType

    if spec.dtype is Datatype.BYTES:  # BentoML has no type for arrays of text
        return list[Any]
    return Annotated[np.ndarray, DType(spec.dtype.numpy_name)]
