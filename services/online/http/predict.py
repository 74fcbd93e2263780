"""BentoML's typed `/predict`, generated from the signature: one argument for each input tensor.

Names that are no Python identifiers are spelled with underscores. A model with one
output answers with its array, one with several with an object of arrays. Of several models
the first is at `/predict`, and each at `/predict/NAME`.
"""

from __future__ import annotations

import inspect
import keyword
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, PlainValidator, create_model

from bundle.errors import MlctlError
from bundle.tensors import Datatype, Signature, TensorSpec
from services.online.http.predict_calls import take
from services.online.models.repository import Serving
from services.online.models.served_model import ServedModel
from services.online.observability.calls import Stages
from services.online.security.public import failed, is_public
from services.protocol.json_data import decode_data
from services.protocol.priority import PRIORITY_HEADER, Priority, priority_of_headers
from services.protocol.wire import declare

ROUTE = "/predict"
logger = logging.getLogger("mlctl.predict")


def predict_routes(serving: Serving) -> dict[str, ServedModel]:
    """The paths of the typed APIs: one for the default model, and each one's own of several."""
    routes = {ROUTE: serving.hosts[0]}
    if len(serving.hosts) > 1:
        routes |= {f"{ROUTE}/{host.name}": host for host in serving.hosts}
    return routes


def argument_names(specs: Iterable[TensorSpec]) -> dict[str, str]:
    """A distinct Python identifier for each tensor name."""
    names: dict[str, str] = {}
    for spec in specs:
        plain = re.sub(r"\W", "_", spec.name)
        if not plain.isidentifier() or keyword.iskeyword(plain) or plain in ("self", "ctx"):
            plain = f"tensor_{plain}"
        while plain in names.values():
            plain += "_"
        names[spec.name] = plain
    return names


def make_predict(host: ServedModel, route: str = ROUTE) -> Any:
    """The `predict` method of the service class of `host`, as a BentoML API at the path `route`."""
    import bentoml

    names = argument_names(host.signature.inputs)
    output = _output_type(host.signature)
    types = {names[spec.name]: _input_type(spec) for spec in host.signature.inputs}

    async def predict(_self: Any, /, ctx: Any = None, **arguments: Any) -> Any:
        return await _predict(host, names, output, arguments, ctx)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(name, kind, annotation=of) for name, of in types.items()]
    parameters.append(inspect.Parameter("ctx", kind, annotation=bentoml.Context))
    signature = inspect.Signature(parameters, return_annotation=output)
    predict.__signature__ = signature  # type: ignore[attr-defined]
    predict.__annotations__ = {**types, "return": output}
    predict.__doc__ = f"Ask model {host.name} (digest {host.digest})."
    return bentoml.api(route=route)(predict)


async def _predict(
    host: ServedModel,
    names: Mapping[str, str],
    output: Any,
    arguments: Mapping[str, Any],
    context: Any,
) -> Any:
    """Ask the model and count; `context` is BentoML's of the request, if it gave one."""
    failure: BaseException | None = None
    seen = take(host, {} if context is None else context.request.scope)
    try:
        inputs = {name: arguments[plain] for name, plain in names.items()}
        lines = () if context is None else context.request.headers.getlist(PRIORITY_HEADER)
        answer = await host.infer(inputs, priority=priority_of_headers(lines) or Priority.NORMAL)
        shaped = _shape_answer(host.signature, output, answer.outputs)
        if seen is not None and host.observer is not None:
            stages = Stages(None, answer.queue_seconds, answer.infer_seconds, None)
            host.observer.answered(seen, stages, inputs, answer, None)
    except MlctlError as error:
        failure = error
        raise _as_bentoml(error) from error
    except BaseException as error:
        failure = error
        raise
    else:
        return shaped
    finally:
        host.count("predict", failure)
        if failure is not None and seen is not None and host.observer is not None:
            host.observer.ended(seen, failure)


def _input_type(spec: TensorSpec) -> Any:
    """An array that is checked before BentoML's own, more forgiving conversion sees it."""
    from bentoml.validators import DType

    def convert(value: Any) -> np.ndarray:
        try:
            return to_array(spec, value)
        except MlctlError as error:
            raise _as_bentoml(error) from error

    if spec.dtype is Datatype.BYTES:  # BentoML has no type for arrays of text
        return Annotated[list[Any], PlainValidator(convert)]
    return Annotated[np.ndarray, DType(spec.dtype.numpy_name), BeforeValidator(convert)]


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

    if spec.dtype is Datatype.BYTES:
        return list[Any]
    return Annotated[np.ndarray, DType(spec.dtype.numpy_name)]


def to_array(spec: TensorSpec, value: Any) -> np.ndarray:
    """The array of an argument: an array as it is, nested lists by the rules of V2's JSON."""
    if isinstance(value, np.ndarray):
        return value
    shape = np.shape(np.array(value, dtype=object))
    return decode_data(declare({spec.name: spec}, spec.name, spec.dtype.value, shape), value)


def _shape_answer(signature: Signature, output: Any, outputs: Mapping[str, np.ndarray]) -> Any:
    if len(signature.outputs) == 1:
        return _from_array(signature.outputs[0], outputs)
    names = argument_names(signature.outputs)
    values = {names[spec.name]: _from_array(spec, outputs) for spec in signature.outputs}
    assert issubclass(output, BaseModel)
    return output(**values)


def _from_array(spec: TensorSpec, outputs: Mapping[str, np.ndarray]) -> Any:
    array = outputs[spec.name]
    if spec.dtype is not Datatype.BYTES:
        return array
    return np.array([value.decode() for value in array.flat]).reshape(array.shape).tolist()


def _as_bentoml(error: MlctlError) -> Exception:
    from services.online.http.refused import RefusedError

    if not is_public(error):
        logger.error("a predict call failed", exc_info=error)
        error = failed()
    return RefusedError(error)
